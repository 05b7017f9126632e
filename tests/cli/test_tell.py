"""`drimed trial tell` and `amend`: what is said before, and after, outcomes are recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drimed.errors import InputError
from tests.cli.commanding import CommandLine, started
from tests.cli.test_hard_sheets import FARMS, outcomes

MANY: dict[str, Any] = FARMS | {"users": {f"farm{n}": {} for n in range(1, 10)}}


@pytest.fixture
def line(tmp_path: Path) -> CommandLine:
    made = started(tmp_path, FARMS)
    made.ok("ask", "farms", "--episode", "1")
    return made


def decisions(line: CommandLine) -> list[dict[str, Any]]:
    line.ok("decisions", "farms", "--out", str(line.folder / "made.json"), "--force")
    made: list[dict[str, Any]] = json.loads((line.folder / "made.json").read_text(encoding="utf-8"))
    return sorted(made, key=lambda d: int(d["id"]))


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


def test_what_was_given_is_told_and_amended_with_a_reason(line: CommandLine) -> None:
    drawn = decisions(line)[0]["arm"]
    other = next(arm for arm in FARMS["arms"] if arm != drawn)
    assert line.ok("tell", "farms", "--decision", "1", "--given", other, "--reason", "the wrong bag").startswith(
        "1 rec"
    )
    assert isinstance(line.refused("tell", "farms", "--decision", "1", "--given", "other", "--reason", "r"), InputError)
    line.ok("amend", "farms", "--decision", "1", "--given", "other", "--reason", "no bag at all")
    assert decisions(line)[0]["given"] == "other"
    assert "other, reason: no bag at all" in line.ok("log", "farms")


def test_the_arms_behind_codes_are_listed_for_who_packs_and_an_asker_who_is_blinded_sees_none(tmp_path: Path) -> None:
    line = started(tmp_path, FARMS | {"blinding": {"codes": "decision"}})
    said = line.ok("ask", "farms", "--episode", "1", "--blinded")
    made = decisions(line)
    assert not any(arm in said for arm in FARMS["arms"])
    assert all(str(d["code"]) in said for d in made)
    listed = line.ok("codes", "farms", "--after", "1")
    assert [all(word in listed for word in (str(d["code"]), d["arm"])) for d in made] == [
        False,
        *[True] * (len(made) - 1),
    ]


def test_what_is_still_to_come_is_named_with_the_command_that_lists_it(line: CommandLine) -> None:
    sheet = line.write("o.csv", "decision,yield,leaching\n1,8,\n2,,31\n3,,\n")
    assert line.ok("tell", "farms", sheet, "--dry-run") == "2 would be recorded. Nothing was written.\n"
    assert line.ok("tell", "farms", sheet).splitlines() == [
        "2 recorded",
        "1 pending: decision 3 (river); drimed trial decisions farms --state pending",
        "2 partial: decision 2 (hill), decision 1 (north); drimed trial decisions farms --state partial",
    ]
    line.ok("missing", "farms", "--decision", "3", "--reason", "hail")
    assert line.ok("tell", "farms", "--decision", "1", "--value", "leaching=30").startswith("1 completed\n1 partial")
    assert line.ok("decisions", "farms", "--state", "pending") == "no such decisions\n"


def test_of_many_unlikely_values_the_first_ones_are_shown(tmp_path: Path) -> None:
    line = started(tmp_path, MANY)
    line.ok("ask", "farms", "--episode", "1")
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
