"""The container and compose files, as far as they can be checked without an engine: all they name exists and runs."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import yaml

from drimed.service.settings import Settings
from drimed.trial.store import open_store
from tests.service.serving import PATIENCE
from tests.trial.servers import Server

ROOT = Path(__file__).parents[2]
FILE = (ROOT / "deploy" / "Containerfile").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text(encoding="utf-8"))
SERVICE, DATABASE = COMPOSE["services"]["service"], COMPOSE["services"]["database"]


def instructions() -> list[tuple[str, str]]:
    """Each instruction of the Containerfile, on one line."""
    lines = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", FILE, flags=re.M)).splitlines()
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines if line)]


def environment() -> dict[str, str]:
    """What the Containerfile sets, and compose over it."""
    given = dict(pair.split("=", 1) for word, rest in instructions() if word == "ENV" for pair in rest.split())
    return given | SERVICE["environment"]


def test_the_containerfile_installs_extras_that_exist_and_can_write_where_it_must() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    (wanted,) = re.findall(r"'/source\[(.*?)\]'", FILE)
    assert {"service", "postgres"} <= set(wanted.split(",")) <= set(extras)
    (made,) = re.findall(r"install -d -o drimed -g drimed (.*)", FILE)
    given = dict(pair.split("=", 1) for word, rest in instructions() if word == "ENV" for pair in rest.split())
    assert made.split() == [str(Path(given["DRIMED_STORE"]).parent), given["NUMBA_CACHE_DIR"]]
    words = [word for word, _ in instructions()]
    assert words.index("USER") < words.index("CMD")


def test_compose_sets_what_exists_and_both_files_agree() -> None:
    given = environment()
    ours = {name: value for name, value in given.items() if name.startswith("DRIMED_")}
    assert set(ours) <= set(Settings().environment())
    settings = Settings.resolve(environment=ours)
    assert not settings.local
    assert f"EXPOSE {settings.port}" in FILE
    assert SERVICE["ports"] == [f"127.0.0.1:{settings.port}:{settings.port}"]
    assert (ROOT / "deploy" / SERVICE["build"]["context"] / SERVICE["build"]["dockerfile"]).exists()
    user, name = DATABASE["environment"]["POSTGRES_USER"], DATABASE["environment"]["POSTGRES_DB"]
    assert ours["DRIMED_STORE"] == f"postgresql://{user}:${{POSTGRES_PASSWORD}}@database:5432/{name}"
    assert "database" in COMPOSE["services"]
    assert {volume.split(":")[0] for volume in DATABASE["volumes"]} == set(COMPOSE["volumes"])
    assert int(SERVICE["stop_grace_period"].removesuffix("s")) > settings.grace
    assert dict(instructions())["CMD"] == str(SERVICE["command"]).replace("'", '"')


def test_the_commands_of_the_container_serve_a_postgresql_store(postgres: Server, tmp_path: Path) -> None:
    programs = Path(sys.executable).parent
    with postgres.database() as address, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
        free.close()
        plain = sa.make_url(address).set(drivername="postgresql").render_as_string(hide_password=False)
        given = environment() | {"DRIMED_STORE": plain, "DRIMED_PORT": port, "DRIMED_WORKERS": "1"}
        env = os.environ | given | {"PATH": f"{programs}:{os.environ['PATH']}", "NUMBA_CACHE_DIR": str(tmp_path)}
        (token,) = re.findall(r"run --rm service (drimed token .*?)\s*#", (ROOT / "deploy/compose.yaml").read_text())
        refused = subprocess.run(SERVICE["command"], env=env, capture_output=True, text=True)
        assert "has no tokens" in refused.stderr
        made = subprocess.run(shlex.split(token), env=env, capture_output=True, text=True, check=True)
        assert made.stdout.startswith("drimed_")
        running = subprocess.Popen(SERVICE["command"], env=env, cwd=tmp_path, stderr=subprocess.DEVNULL)
        try:
            answer = _answer(f"http://127.0.0.1:{port}/readyz")
            assert answer == 200
            (check,) = re.findall(r"^HEALTHCHECK .*?CMD (\[.*\])$", FILE, re.M)
            command = [word.replace(":8000", f":{port}") for word in yaml.safe_load(check)]
            subprocess.run(command, env=env, check=True)
        finally:
            running.terminate()
            running.wait(timeout=PATIENCE)
        assert running.returncode in (0, -signal.SIGTERM)
        open_store(address, create=False).close()


def _answer(address: str) -> int:
    """The status, once there is one."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:
                return int(answer.status)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
