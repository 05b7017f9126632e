"""A folder with trials in it, and the command line as a person uses it there."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from drimed.cli.console import console
from drimed.cli.main import app
from drimed.errors import DrimedError


class CommandLine:
    """A folder with a trial in it, and the command line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runner = CliRunner()
        console.width = 200  # nothing is folded

    def run(self, *words: str) -> Result:
        """`drimed trial ...` in this process."""
        store = str(self.folder / "t.db")
        return self.runner.invoke(app, ["trial", *words], env={"DRIMED_STORE": store})

    def ok(self, *words: str) -> str:
        """What a command says that works."""
        result = self.run(*words)
        assert result.exit_code == 0, result.output + repr(result.exception)
        return result.output

    def refused(self, *words: str) -> DrimedError:
        """Why a command does not work."""
        error = self.run(*words).exception
        assert isinstance(error, DrimedError), error
        return error

    def process(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        """`drimed trial ...` as a process of its own, with the bytes that it writes."""
        return subprocess.run(
            [sys.executable, "-m", "drimed.cli.main", "trial", *words],
            env=os.environ | {"DRIMED_STORE": str(self.folder / "t.db"), "COLUMNS": "200", "FORCE_COLOR": "1"},
            capture_output=True,
            check=False,
        )

    def status(self, trial: str) -> dict[str, Any]:
        """Of a trial."""
        found: dict[str, Any] = json.loads(self.ok("status", trial, "--json"))
        return found

    def write(self, name: str, text: str | bytes) -> str:
        """A file in the folder; its path."""
        (self.folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
        return str(self.folder / name)

    def rows(self, name: str) -> list[dict[str, str]]:
        """A CSV file of the folder."""
        with (self.folder / name).open(encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def raw(self, path: Path) -> list[list[str]]:
        """The cells of a CSV file."""
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.reader(file))


def started(folder: Path, *specs: dict[str, Any]) -> CommandLine:
    """A folder with these trials in it."""
    line = CommandLine(folder)
    for spec in specs:
        line.ok("init", line.write(f"{spec['name']}.json", json.dumps(spec)), "--no-rehearse")
    return line
