"""Sheets that are handed out, filled in and told, as CSV and as workbooks."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from drimed.trial.tables import DICTIONARY, read
from tests.cli.commanding import CommandLine, started
from tests.cli.test_hard_sheets import FARMS, outcomes

WET: dict[str, Any] = FARMS | {"context": {"rain": {"typical": 500.0, "spread": 100.0}}}
openpyxl: Any = import_module("openpyxl")
USERS = "user,rain\nnorth,480\nhill,500\nriver,520\n"


@pytest.fixture
def line(tmp_path: Path) -> CommandLine:
    made = started(tmp_path, WET)
    made.write("users.csv", USERS)
    return made


def asked(line: CommandLine, name: str, *words: str) -> Path:
    out = line.folder / name
    line.ok("ask", "farms", str(line.folder / "users.csv"), "--episode", "1", "--out", str(out), *words)
    return out


def typed(path: Path, values: dict[tuple[int, str], float | str]) -> None:
    """Type into a sheet as a person does: (decision, column) -> value."""
    if path.suffix == ".csv":
        names, *rows = [line.split(",") for line in path.read_text(encoding="utf-8").splitlines()]
        for (decision, column), value in values.items():
            rows[decision - 1][names.index(column)] = str(value)
        path.write_text("".join(",".join(row) + "\n" for row in [names, *rows]), encoding="utf-8")
        return
    book = openpyxl.load_workbook(path)
    sheet = book.active
    at = {cell.value: cell.column for cell in sheet[1]}
    for (decision, column), value in values.items():
        sheet.cell(decision + 1, at[column]).value = value
    book.save(path)


@pytest.mark.parametrize("suffix", [".csv", ".xlsx"])
def test_the_sheet_of_arms_has_room_for_outcomes_and_notes_and_comes_back(line: CommandLine, suffix: str) -> None:
    out = asked(line, f"arms{suffix}")
    assert read(out.read_bytes(), out.name).names[-3:] == ["yield", "leaching", "notes"]
    typed(out, {(1, "yield"): 8.7, (1, "leaching"): 31, (3, "yield"): 9.25, (3, "notes"): "hail in June"})
    line.ok("tell", "farms", str(out))
    assert outcomes(line) == [(8.7, 31.0), (None, None), (9.25, None)]
    after = read(out.read_bytes(), out.name)
    assert [row.cells.get("notes") for row in after.rows] == [None, None, "hail in June"]
    with pytest.raises(AssertionError, match="exists: choose another name, or write over it with --force"):
        asked(line, out.name)
    assert read(out.read_bytes(), out.name) == after  # typed outcomes and notes are not lost


def test_a_workbook_has_units_and_percentages_and_comes_back_without_a_question(tmp_path: Path) -> None:
    units = {
        name: metric | {"unit": unit}
        for (name, metric), unit in zip(WET["metrics"].items(), ("t/ha", "kg [N]"), strict=True)
    }
    rain = {"rain": WET["context"]["rain"] | {"unit": "mm"}}
    line = started(tmp_path, WET | {"metrics": units, "context": rain})
    line.write("users.csv", USERS)
    out = asked(line, "arms.xlsx")
    heads, *rows = openpyxl.load_workbook(out).active.iter_rows()
    at = {cell.value: i for i, cell in enumerate(heads)}
    assert {"rain (mm)", "yield (t/ha)", "leaching"} < at.keys(), "a unit that would not be read back is left out"
    assert {row[at["propensity"]].number_format for row in rows} == {"0.0%"}
    assert rows[0][at["propensity"]].value == 1.0
    typed(out, {(1, "yield (t/ha)"): 8.7, (1, "leaching"): 31})
    assert line.ok("tell", "farms", str(out)).startswith("1 recorded")
    line.ok("export", "farms", "--out", str(tmp_path / "log.xlsx"))
    heads, *rows = openpyxl.load_workbook(tmp_path / "log.xlsx").active.iter_rows()
    shares = {head.value for head, cell in zip(heads, rows[0], strict=True) if cell.number_format == "0.0%"}
    assert shares == {"propensity", *(f"probability_{arm}" for arm in WET["arms"])}


@pytest.mark.parametrize("suffix", [".csv", ".xlsx", ".json"])
def test_a_sheet_of_what_is_pending_begins_with_the_oldest_and_has_all(line: CommandLine, suffix: str) -> None:
    for season in range(1, 11):
        line.ok("ask", "farms", str(line.folder / "users.csv"), "--episode", str(season))
    out = line.folder / f"pending{suffix}"
    line.ok("decisions", "farms", "--state", "pending", "--out", str(out))
    data = out.read_bytes()
    rows = json.loads(data) if suffix == ".json" else [row.cells for row in read(data, out.name).rows]
    assert [row.get("decision", row.get("id")) for row in rows] == (
        [str(n) for n in range(1, 31)] if suffix == ".csv" else list(range(1, 31))
    )
    line.ok("decisions", "farms", "--state", "pending", "--limit", "4", "--out", str(line.folder / "few.csv"))
    assert [row["decision"] for row in line.rows("few.csv")] == ["27", "28", "29", "30"]


def test_an_export_as_a_workbook_has_what_the_csv_has_and_may_be_written_again(line: CommandLine) -> None:
    asked(line, "arms.csv")
    line.ok("tell", "farms", "--decision", "1", "--value", "yield=8.7", "--value", "leaching=31")
    for more in ((), ("--force",)):
        line.ok("export", "farms", "--out", str(line.folder / "log.xlsx"), *more)
    line.ok("export", "farms", "--out", str(line.folder / "log.csv"), "--force")
    book, sheet = (read((line.folder / f"log.{s}").read_bytes(), f"log.{s}") for s in ("xlsx", "csv"))
    assert book.names == sheet.names
    for one, other in zip(book.rows, sheet.rows, strict=True):
        assert {n: c if isinstance(c, str) else float(c) for n, c in one.cells.items()} == {
            n: c if isinstance(one.cells[n], str) else float(c) for n, c in other.cells.items()
        }


def test_the_tables_of_a_report_may_be_workbooks(line: CommandLine) -> None:
    asked(line, "arms.csv")
    for more in ((), ("--force",)):
        line.ok("report", "farms", "--out", str(line.folder / "report"), "--xlsx", *more)
    line.ok("report", "farms", "--out", str(line.folder / "plain"))
    names = {path.stem for path in (line.folder / "plain").glob("*.csv")}
    assert {path.stem for path in (line.folder / "report").glob("*.xlsx")} == names
    book = read((line.folder / "report" / "effects.xlsx").read_bytes(), "effects.xlsx")
    assert book.names == read((line.folder / "plain" / "effects.csv").read_bytes(), "effects.csv").names
    first, second = openpyxl.load_workbook(line.folder / "report" / "effects.xlsx")
    assert second.title == DICTIONARY
    names, *told = second.iter_rows(values_only=True)
    assert names == ("column", "meaning")
    assert [column for column, _ in told] == [cell.value for cell in first[1]]


@pytest.mark.parametrize("suffix", [".csv", ".xlsx"])
def test_a_sheet_of_nothing_that_is_pending_has_its_headings(line: CommandLine, suffix: str) -> None:
    full, empty = (line.folder / f"{name}{suffix}" for name in ("full", "empty"))
    told = "decisions", "farms", "--state", "pending"
    for more in ((), ("--blinded", "--force")):
        line.ok(*told, *more, "--out", str(empty))
        before = read(empty.read_bytes(), empty.name)
        assert before.rows == []
        assert before.names[:3] == ["decision", "episode", "user"]
        assert ("arm" in before.names) is not bool(more)
        assert before.names[-3:] == ["yield", "leaching", "notes"]
    line.ok("ask", "farms", str(line.folder / "users.csv"), "--episode", "1")
    line.ok(*told, "--out", str(full))
    assert set(before.names) < set(read(full.read_bytes(), full.name).names)
