"""Tables fit a terminal of 80 columns: nothing is cut off; what does not fit becomes a list."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from drimed.cli.console import console
from drimed.cli.main import app

WIDE = "".join(
    f'[context.field_with_a_long_name_{i}]\ntypical = 5\nspread = 1\naffects = ["level"]\n' for i in range(6)
)


def drimed(folder: Path, *arguments: str) -> str:
    env = {"DRIMED_STORE": "t.db", "DRIMED_ACTOR": "a coordinator with a long name"}
    with contextlib.chdir(folder):
        console.width = 80
        done = CliRunner().invoke(app, arguments, env=env)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("width")
    fill(folder)
    return folder


def fill(folder: Path) -> None:
    text = drimed(folder, "trial", "template").replace("[users.north]", "[users.north-of-the-river-and-the-mill]")
    (folder / "t.toml").write_text(text.replace("[policy]", WIDE + "[policy]"), encoding="utf-8")
    drimed(folder, "trial", "init", "t.toml", "--no-rehearse")
    fields = ["rain", *(f"field_with_a_long_name_{i}" for i in range(6))]
    users = ["north-of-the-river-and-the-mill", "hill", "river"]
    sheet = [["user", *fields], *([user, "450", *["5"] * 6] for user in users)]
    (folder / "season.csv").write_text("".join(",".join(row) + "\n" for row in sheet), encoding="utf-8")
    drimed(folder, "trial", "ask", "maize-nitrogen", "season.csv", "--episode", "1", "--out", "arms.csv")
    drimed(folder, "trial", "tell", "maize-nitrogen", "--decision", "1", "--value", "yield=8.7")
    drimed(folder, "token", "create", "--role", "read", "--label", "the field office of the north", "--days", "99")
    rows = "".join(f"{'abc'[i % 3]},{i % 7},{0.2 + 0.1 * (i % 3)}\n" for i in range(90))
    (folder / "log.csv").write_text("action,reward,propensity\n" + rows, encoding="utf-8")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("trial status", ["outcomes", "2 pending"]),
        ("trial decisions maize-nitrogen", ["season", "state", "pending"]),
        ("trial log maize-nitrogen", ["what", "yield = 8.7"]),
        ("trial ask maize-nitrogen season.csv --episode 1", ["field_with_a_long_name_5", "propensity", "reason"]),
        ("token list", ["expires", "state", "active"]),
        ("policies", ["what it uses", "dri_med"]),
        ("bench list", ["what it is", "paper"]),
        ("evaluate log.csv --policy uniform,arm=a --reward-range 0 6", ["at all times", "difference"]),
    ],
)
def test_a_table_fits(folder: Path, command: str, words: list[str]) -> None:
    said = drimed(folder, *command.split())
    rules = re.findall(r"^.*[─━].*$", said, flags=re.M)
    assert all(len(line) <= 80 for line in rules)
    assert "…" not in said
    for word in words:
        assert word in said


def test_a_column_that_could_be_narrower_gives_way(folder: Path) -> None:
    text = drimed(folder, "trial", "template").replace('"maize-nitrogen" ', '"winter-wheat-nitrogen" ')
    (folder / "w.toml").write_text(text, encoding="utf-8")
    drimed(folder, "trial", "init", "w.toml", "--no-rehearse")
    sheet = folder / "w.csv"
    sheet.write_text("user,rain\nnorth,450\nhill,450\nriver,450\n", encoding="utf-8")
    drimed(folder, "trial", "ask", "winter-wheat-nitrogen", "w.csv", "--season", "spring 1999", "--out", "w2.csv")
    drimed(folder, "trial", "missing", "winter-wheat-nitrogen", "--decision", "1", "--reason", "hail")
    said = drimed(folder, "trial", "status", "winter-wheat-nitrogen")
    assert "".join(re.sub(r"\s", "", line[-20:]) for line in said.splitlines()[-4:]).endswith("pending,1missing")
