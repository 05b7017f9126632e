from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from drimed.cli import token
from drimed.cli.token import app
from drimed.errors import UnknownNameError
from drimed.service import tokens
from drimed.trial.stores.opening import open_store


def run(store: Path, *words: str) -> str:
    result = CliRunner().invoke(app, [*words, "--store", str(store)])
    if result.exception is not None:
        raise result.exception
    return result.output


def test_a_token_is_made_listed_and_revoked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token, "console", Console(width=200))
    store = tmp_path / "s.db"
    said = run(store, "create", "--label", "field office", "--role", "ask-tell", "--trial", "maize", "--days", "30")
    assert "no trial 'maize' yet" in said
    text = said.split()[-1]
    opened = open_store(str(store))
    found = tokens.recognised(opened, text)
    assert found is not None
    assert (found.label, found.role, found.trial) == ("field office", "ask-tell", "maize")
    listed = run(store, "list")
    assert "field office" in listed
    assert "active" in listed
    assert text.split("_", 2)[2] not in listed
    assert "revoked" in run(store, "revoke", "field office")
    assert "revoked" in run(store, "list")
    again = tokens.recognised(opened, text)
    assert again is not None
    assert again.revoked is not None
    with pytest.raises(UnknownNameError):
        run(store, "revoke", "nobody")
    opened.close()
