"""`drimed trial tell` and `amend`: what is said before, and after, outcomes are recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commanding import CommandLine
from tests.cli.test_hard_sheets import FARMS, outcomes

MANY: dict[str, Any] = FARMS | {"users": {f"farm{n}": {} for n in range(1, 10)}}


def started(folder: Path, spec: dict[str, Any]) -> CommandLine:
    line = CommandLine(folder)
    line.ok("init", line.write("farms.json", json.dumps(spec)), "--no-rehearse")
    line.ok("ask", "farms", "--episode", "1")
    return line


@pytest.fixture
def line(tmp_path: Path) -> CommandLine:
    return started(tmp_path, FARMS)


def test_a_dry_run_says_what_would_be_done_and_that_nothing_was(line: CommandLine) -> None:
    line.ok("tell", "farms", "--decision", "1", "--value", "yield=8", "--value", "leaching=30")
    sheet = line.write("o.csv", "decision,yield,leaching\n1,8,30\n2,8.7,31\n3,9,32\n")
    said = line.ok("tell", "farms", sheet, "--dry-run")
    assert said == "1 already recorded, 2 would be recorded. Nothing was written.\n"
    amend = ["amend", "farms", "yield=8.5", "--decision", "1", "--reason", "typo", "--dry-run"]
    assert line.ok(*amend) == "decision 1: would be amended, now yield = 8.5, leaching = 30. Nothing was written.\n"
    missing = ["missing", "farms", "--decision", "2", "--reason", "hail", "--dry-run"]
    assert line.ok(*missing) == "decision 2: would be missing. Nothing was written.\n"
    assert outcomes(line) == [(8.0, 30.0), (None, None), (None, None)]


def test_rows_that_are_still_empty_are_named(tmp_path: Path) -> None:
    line = started(tmp_path, MANY)
    sheet = line.write("o.csv", "decision,yield,leaching\n1,8,30\n2,,\n3,,\n")
    first, second = line.ok("tell", "farms", sheet).splitlines()
    assert first == "1 recorded; 2 rows have no outcome yet: decision 2 (farm2), decision 3 (farm3)"
    assert second.startswith("6 other outcomes of the trial are still to come")
    line.ok("missing", "farms", "--decision", "3", "--reason", "hail")
    assert "; 1 row has no outcome yet: decision 2 (farm2)\n" in line.ok("tell", "farms", sheet)


def test_what_is_still_to_come_of_partial_outcomes_is_named(line: CommandLine) -> None:
    sheet = line.write("o.csv", "decision,yield,leaching\n1,8,\n2,,31\n3,9,32\n")
    rest = "2 are partial: decision 1 has no leaching yet, decision 2 has no yield yet"
    assert line.ok("tell", "farms", sheet, "--dry-run").startswith(f"3 would be recorded; {rest}. Nothing was written.")
    assert line.ok("tell", "farms", sheet).startswith(f"3 recorded; {rest}\n")
    said = line.ok("tell", "farms", "--decision", "1", "--value", "leaching=30")
    assert said.startswith("1 completed\n")


def test_where_nothing_is_pending_that_is_said_with_what_is_partial(line: CommandLine) -> None:
    line.ok("tell", "farms", line.write("o.csv", "decision,yield,leaching\n1,8,\n2,9,31\n3,9,32\n"))
    said = line.ok("decisions", "farms", "--state", "pending")
    assert said == "no such decisions; 1 is partial: drimed trial decisions farms --state partial\n"
    assert line.ok("decisions", "farms", "--state", "missing") == "no such decisions\n"


def test_many_empty_rows_are_counted(tmp_path: Path) -> None:
    line = started(tmp_path, MANY)
    rows = "".join(f"{n},\n" for n in range(2, 10))
    said = line.ok("tell", "farms", line.write("o.csv", f"decision,yield\n1,8\n{rows}"))
    assert "8 rows have no outcome yet: decision 2 (farm2)" in said
    assert "decision 6 (farm6) and 3 more\n" in said
    assert "still to come" not in said
    one = line.ok("tell", "farms", "--decision", "2", "--value", "yield=8", "--value", "leaching=30")
    assert one.splitlines()[1].startswith("7 outcomes of the trial are still to come")


def test_of_many_unlikely_values_the_first_ones_are_shown(tmp_path: Path) -> None:
    line = started(tmp_path, MANY)
    swapped = "".join(f"{n},3{n},9\n" for n in range(1, 10))
    result = line.run("tell", "farms", line.write("o.csv", f"decision,yield,leaching\n{swapped}"))
    assert "row 4: decision 3: yield 33 is outside 0 to 15, the range in the trial file\nand 6 more" in result.output
    assert "repeat this with --yes" in str(result.exception)


@pytest.mark.parametrize("code", ["-9999", "-99", "999"])
def test_a_value_that_may_stand_for_a_missing_one_is_asked_about_with_what_to_do(line: CommandLine, code: str) -> None:
    result = line.run("tell", "farms", line.write("o.csv", f"decision,yield\n1,{code}\n"))
    assert "leave it empty if it stands for a missing value" in result.output


@pytest.mark.parametrize(
    ("values", "read"), [(["yield=7,2"], 7.2), (["yield=7.2"], 7.2), (["yield=1.234"], 1.234), (["yield=-0,5"], -0.5)]
)
def test_a_decimal_comma_is_one_on_the_command_line(line: CommandLine, values: list[str], read: float) -> None:
    line.ok("tell", "farms", "--decision", "1", *[w for v in values for w in ("--value", v)], "--yes")
    assert outcomes(line)[0][0] == read
