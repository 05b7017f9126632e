"""The deployment page: its files name settings that exist, and its backups bring everything back."""

from __future__ import annotations

import re
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import sqlalchemy as sa

from drimed.service import auth
from drimed.service.app import create_app, uvicorn_config
from drimed.service.settings import Settings
from drimed.trial.store import open_store
from drimed.trial.trial import Trial
from drimed.trial.verify import verify
from tests.trial.servers import Server
from tests.trial.trials import BUSY, outcome

ROOT = Path(__file__).parents[2]
UNIT, NGINX, CADDY = (ROOT / "deploy" / name for name in ("drimed.service", "nginx.conf", "Caddyfile"))


def test_the_page_leads_to_every_file() -> None:
    page = (ROOT / "docs" / "service.md").read_text()
    linked = set(re.findall(r"\(\.\./(deploy/[^)]*)\)", page))
    assert linked == {f"deploy/{file.name}" for file in (ROOT / "deploy").iterdir()}


def test_the_unit_sets_what_exists_and_waits_longer_than_the_service_does() -> None:
    unit = UNIT.read_text()
    given = dict(re.findall(r"\b(DRIMED_[A-Z_]+)=(\S+)", unit))
    assert set(given) <= set(Settings().environment())
    assert auth.is_loopback(Settings.resolve(environment=given).host)
    wait = re.search(r"TimeoutStopSec=(\d+)", unit)
    assert wait is not None
    assert int(wait[1]) > Settings().grace


def test_the_proxies_take_as_large_bodies_as_the_service_and_point_to_its_port() -> None:
    for file, limit in ((NGINX, r"client_max_body_size (\d+)m;"), (CADDY, r"max_size (\d+)MiB")):
        text = file.read_text()
        found = re.search(limit, text)
        assert found is not None
        assert int(found[1]) * 1024 * 1024 == Settings().largest_body
        assert f"127.0.0.1:{Settings().port}" in text


def test_connections_of_proxies_are_kept_longer_than_they_keep_them() -> None:
    """Else a request could be sent into a connection that is just being closed."""
    nginx, caddy = NGINX.read_text(), CADDY.read_text()
    assert re.search(r"upstream drimed \{[^}]*\bkeepalive \d+;", nginx)
    assert "proxy_pass http://drimed;" in nginx
    assert 'proxy_set_header Connection "";' in nginx
    kept = uvicorn_config(Settings(), create_app).timeout_keep_alive
    assert kept > 60  # of nginx, unless it is told otherwise
    assert "keepalive_timeout" not in nginx
    assert kept > 120  # of Caddy
    assert "keepalive" not in caddy


@contextmanager
def in_use(address: str) -> Iterator[str]:
    """A store with a trial and a token, open for as long as the block lasts; the hash of the trial's last event."""
    store = open_store(address)
    trial = Trial.create(BUSY, store)
    for _ in range(10):
        given = trial.ask("site 0")
        trial.tell(given.id, outcome(given.id, given.arm))
    auth.create_token(store, label="admin", role="manage")
    yield trial.status().hash
    store.close()


def check(address: str, hash: str) -> None:
    """Everything is there, and the trial goes on."""
    store = open_store(address, create=False)
    verdict = verify(store, "busy", expected_hash=hash)
    assert verdict.ok, verdict.faults
    assert [token.label for token in auth.list_tokens(store)] == ["admin"]
    assert Trial.open("busy", store).ask("site 1").id == 11
    store.close()


def test_a_copy_of_a_sqlite_store_in_use_is_whole(tmp_path: Path) -> None:
    with (
        in_use(str(tmp_path / "trials.db")) as hash,
        closing(sqlite3.connect(tmp_path / "trials.db")) as source,
        closing(sqlite3.connect(tmp_path / "backup.db")) as copy,
    ):
        source.backup(copy)  # what sqlite3's .backup does
    check(str(tmp_path / "backup.db"), hash)


def test_a_dump_of_a_postgresql_store_is_restored_over_a_later_one(postgres: Server, tmp_path: Path) -> None:
    programs, dump = postgres.programs, tmp_path / "drimed.dump"
    with postgres.database() as old:
        plain = sa.make_url(old).set(drivername="postgresql").render_as_string(hide_password=False)
        with in_use(old) as hash:
            subprocess.run([programs / "pg_dump", "-Fc", "-f", dump, plain], check=True)
        store = open_store(old)
        Trial.open("busy", store).ask("site 2")
        store.close()
        subprocess.run([programs / "pg_restore", "--clean", "--if-exists", "-d", plain, dump], check=True)
        check(old, hash)
