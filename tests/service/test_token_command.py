from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from drimed.cli import console as common
from drimed.cli import serve
from drimed.cli.main import app as drimed
from drimed.cli.serve import token
from drimed.errors import UnknownNameError
from drimed.service import app, auth
from drimed.service.settings import Settings
from drimed.trial.store import open_store


def run(store: Path, *words: str) -> str:
    result = CliRunner().invoke(token, [*words, "--store", str(store)])
    if result.exception is not None:
        raise result.exception
    return result.output


def test_a_token_is_made_listed_and_revoked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "console", Console(width=200))
    store = tmp_path / "s.db"
    said = run(store, "create", "--label", "field office", "--role", "ask-tell", "--trial", "maize", "--days", "30")
    assert "no trial 'maize' yet" in said
    text = said.split()[-1]
    opened = open_store(str(store))
    found = auth.find_token(opened, text)
    assert found is not None
    assert (found.label, found.role, found.trial) == ("field office", "ask-tell", "maize")
    listed = run(store, "list")
    assert "field office" in listed
    assert "active" in listed
    assert text.split("_", 2)[2] not in listed
    assert "revoked" in run(store, "revoke", "field office")
    assert "revoked" in run(store, "list")
    again = auth.find_token(opened, text)
    assert again is not None
    assert again.revoked is not None
    with pytest.raises(UnknownNameError):
        run(store, "revoke", "nobody")
    opened.close()


@pytest.mark.parametrize("name", ["trials.db", "a [b] store.db"])
def test_the_service_says_how_to_close_the_store_that_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(app, "run", lambda _: None)
    monkeypatch.setattr(serve, "errors", Console(width=80))
    store = str(tmp_path / name)
    said = CliRunner().invoke(drimed, ["serve", "--store", store]).output
    command = said.partition("close it with: drimed token ")[2].splitlines()[0]
    words = shlex.split(command.replace("NAME", "admin"))
    assert CliRunner().invoke(token, words).exit_code == 0
    assert app.check_access(Settings(store=store))
    assert "close it" not in CliRunner().invoke(drimed, ["serve", "--store", store]).output
