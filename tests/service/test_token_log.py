"""Tokens are made and revoked in a log that is chained; what was done to them beside it is found."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from drimed.cli.main import app
from drimed.service import token_log, tokens
from drimed.trial.events import hash_after, written
from drimed.trial.stores import open_store
from drimed.trial.stores.sql import SqlStore


@pytest.fixture
def store(address: str) -> Iterator[SqlStore]:
    opened = open_store(address)
    for label in ("ann", "bob"):
        tokens.create(opened, label=label, role="manage", actor="admin")
    tokens.revoke(opened, "ann", actor="chief")
    yield opened
    opened.close()


def run(store: SqlStore, statement: str, **values: object) -> None:
    with store._engine.begin() as connection:
        connection.execute(sa.text(statement), values)


def test_who_made_and_revoked_what_is_there(store: SqlStore) -> None:
    assert token_log.verify(store) == []
    found = [(e.seq, e.actor, e.kind, e.body.get("label")) for e in token_log.events(store)]
    assert found == [(1, "admin", "created", "ann"), (2, "admin", "created", "bob"), (3, "chief", "revoked", None)]
    tokens.revoke(store, "ann")  # again: nothing happens
    assert len(token_log.events(store)) == 3


def test_the_log_has_no_secret(store: SqlStore) -> None:
    _, text = tokens.create(store, label="new", role="read")
    assert all(text.split("_", 2)[2] not in e.text for e in token_log.events(store))


Do = Callable[[SqlStore], None]
INSERT = (
    "INSERT INTO drimed_tokens (id, hash, label, role, created) VALUES ('00000000', 'beef', 'eve', 'manage', '2026')"
)
DONE: dict[str, tuple[str, str]] = {
    "a token that somebody put there": (INSERT, "token 'eve' (00000000) is in no event"),
    "one that was removed": ("DELETE FROM drimed_tokens WHERE label = 'bob'", "token 'bob' "),
    "one that may do more": ("UPDATE drimed_tokens SET role = 'read' WHERE label = 'bob'", "somebody else: role"),
    "another secret": ("UPDATE drimed_tokens SET hash = 'beef' WHERE label = 'bob'", "somebody else: hash"),
    "one that works again": ("UPDATE drimed_tokens SET revoked = NULL", "somebody else: revoked"),
    "one that never expires": (
        "UPDATE drimed_tokens SET expires = '2099' WHERE label = 'bob'",
        "somebody else: expires",
    ),
    "an event that was changed": ("UPDATE drimed_log SET actor = 'eve' WHERE seq = 2", "event 2 (created) of the"),
    "an event that was taken out": ("DELETE FROM drimed_log WHERE seq = 2", "event 3 (revoked) of the"),
    "an end that was cut off": ("DELETE FROM drimed_log WHERE seq = 3", "somebody else: revoked"),
    "all of it": ("DELETE FROM drimed_log", "token 'ann'"),
    "no JSON": ("UPDATE drimed_log SET text = '{' WHERE seq = 2", "event 2 (created) of the"),
}


@pytest.mark.parametrize("what", DONE)
def test_what_was_done_in_the_database_itself_is_found(what: str, store: SqlStore) -> None:
    statement, fault = DONE[what]
    run(store, statement)
    assert any(fault in found for found in token_log.verify(store))


def test_a_log_that_was_chained_again_contradicts_the_tokens_or_an_anchor(store: SqlStore) -> None:
    head = token_log.head(store)
    assert head is not None
    assert token_log.verify(store, [head]) == []
    *_, last = token_log.events(store)
    before = token_log.events(store)[-2].hash
    forged = replace(last, actor="eve")
    run(store, "UPDATE drimed_log SET actor = 'eve', hash = :h WHERE seq = 3", h=hash_after(before, forged))
    assert token_log.verify(store) == []
    (fault,) = token_log.verify(store, [head])
    assert f"event 3 of the tokens' log had the hash {head.hash[:12]}, and has not now" in fault
    twice = replace(last, seq=4, hash=forged.hash)
    run(
        store,
        "INSERT INTO drimed_log (seq, time, actor, kind, text, hash) VALUES (4, :t, 'eve', 'revoked', :x, :h)",
        t=last.time, x=written(last.body), h=hash_after(hash_after(before, forged), replace(twice, actor="eve")),
    )  # fmt: skip
    assert "was revoked before" in " ".join(token_log.verify(store))


def test_two_who_make_tokens_at_once_do_so_one_after_the_other(store: SqlStore) -> None:
    threads = [
        threading.Thread(target=tokens.create, args=(store,), kwargs={"label": f"t{i}", "role": "read"})
        for i in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert token_log.verify(store) == []
    assert len(token_log.events(store)) == 9


def test_the_command_line_shows_keeps_and_proves_it(tmp_path: Path) -> None:
    def said(*words: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, ["token", *words, "--store", str(tmp_path / "s.db")], env={"COLUMNS": "200"})
        assert result.exit_code == code, result.output
        return " ".join(result.output.split())

    said("create", "--label", "ann", "--role", "read", "--actor", "admin")
    said("revoke", "ann", "--actor", "chief")
    shown = said("log")
    assert "admin" in shown
    assert "chief" in shown
    file = str(tmp_path / "anchors.txt")
    assert "added 1 line" in said("anchor", "--to", file)
    assert said("anchor").split()[1] == "@tokens"
    assert "what their log says" in said("verify", "--anchors", file)
    store = open_store(str(tmp_path / "s.db"))
    run(store, "UPDATE drimed_tokens SET revoked = NULL")
    assert "was changed by somebody else: revoked" in said("verify", code=1)
    store.close()
