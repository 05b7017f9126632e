"""The size of the code and the length of its paths. Growth is a decision: a cap is raised here and in CONTRIBUTING.md.

A path is measured with `sys.setprofile`: how many files and functions of drimed a call passes. What it does on its
first run alone (imports, kernels, caches) is not counted.
"""

from __future__ import annotations

import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from unittest.mock import patch

import pytest
from typer.testing import CliRunner

import drimed
from drimed.cli.main import app
from drimed.service import alerts
from drimed.service.settings import Settings
from drimed.trial import template
from drimed.trial.spec import TrialSpec
from drimed.trial.store import open_store
from drimed.trial.trial import Trial
from tests.service.serving import PATIENCE, served

ROOT = Path(__file__).parents[1]
SOURCE = Path(drimed.__file__).parent
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
CAPS = {  # name in CONTRIBUTING.md -> most
    "lines of src/": 39_500,
    "modules of src/": 126,
    "lines of tests/": 34_600,
    "lines of documents": 2_860,
    "`Trial.ask`, files": 30,
    "`Trial.ask`, functions": 150,
    "a sheet told by the command line, files": 30,
    "POST ask, files": 36,
    "the overview page, files": 60,
}
USERS = ("north", "hill", "river")
NEAR = 0.1  # relative difference that a number in CONTRIBUTING.md may have to what is measured


@dataclass(frozen=True)
class CallPath:
    """What a call passed."""

    files: set[str]
    functions: set[tuple[str, str]]


class Recorder:
    """Calls of drimed's functions, in all threads that began while it is installed."""

    def __init__(self) -> None:
        self.codes: set[CodeType] = set()
        self.on = False

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if self.on and event == "call":
            self.codes.add(frame.f_code)

    def path(self, call: Callable[[], object]) -> CallPath:
        """Run a call and return what it passed."""
        self.codes.clear()
        self.on = True
        try:
            call()
        finally:
            self.on = False
        own = [c for c in self.codes if c.co_filename.startswith(str(SOURCE)) and not c.co_name.startswith("<")]
        return CallPath({c.co_filename for c in own}, {(c.co_filename, c.co_qualname) for c in own})


@contextmanager
def recorder() -> Iterator[Recorder]:
    recording = Recorder()
    before = sys.getprofile()
    threading.setprofile(recording)
    sys.setprofile(recording)
    try:
        yield recording
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    return measure(tmp_path_factory.mktemp("size"))


def measure(folder: Path) -> dict[str, int]:
    """Everything that has a cap."""
    with recorder() as recording:
        return sizes() | of_ask(recording, folder) | of_sheet(recording, folder) | of_service(recording, folder)


def sizes() -> dict[str, int]:
    modules = [p for p in SOURCE.rglob("*.py") if p.name != "__init__.py" or p.read_text(encoding="utf-8").strip()]

    def lines(files: Any) -> int:
        return sum(len(p.read_text(encoding="utf-8").splitlines()) for p in files)

    return {
        "lines of src/": lines(SOURCE.rglob("*.py")),
        "modules of src/": len(modules),
        "lines of tests/": lines((ROOT / "tests").rglob("*.py")),
        "lines of documents": lines((ROOT / "docs").rglob("*.md")),
    }


def grown(store: str, name: str) -> Trial:
    """The template's trial after two seasons, in its third, with nobody asked yet."""
    text = template().replace("maize-nitrogen", name).replace("# seed = 7", "seed = 7")
    trial = Trial.create(TrialSpec.parse(text), open_store(store))
    for season in range(3):
        trial.open_episode({user: {"rain": 400.0 + 50 * season} for user in USERS})
        for decision in trial.ask_many() if season < 2 else ():
            trial.tell(decision.id, outcome(decision.id), confirm=True)
    return trial


def outcome(decision: int) -> dict[str, float]:
    return {"yield": 8.0 + decision % 7 / 10, "leaching": 30.0 + decision % 5}


def of_ask(recording: Recorder, folder: Path) -> dict[str, int]:
    trial = grown(f"sqlite:///{folder / 'ask.db'}", "ask")
    trial.ask("north")
    path = recording.path(lambda: trial.ask("hill"))
    return {"`Trial.ask`, files": len(path.files), "`Trial.ask`, functions": len(path.functions)}


def of_sheet(recording: Recorder, folder: Path) -> dict[str, int]:
    store = f"sqlite:///{folder / 'sheet.db'}"
    trial = grown(store, "sheet")
    decisions = trial.ask_many()
    trial.store.close()

    def tell(decision: int) -> None:
        values = outcome(decision)
        sheet = folder / f"{decision}.csv"
        sheet.write_text(f"decision,{','.join(values)}\n{decision},{','.join(map(str, values.values()))}\n")
        done = CliRunner().invoke(app, ["trial", "tell", "sheet", str(sheet), "--store", store, "--yes"])
        assert done.exit_code == 0, done.output

    tell(decisions[0].id)
    path = recording.path(lambda: tell(decisions[1].id))
    return {"a sheet told by the command line, files": len(path.files)}


def of_service(recording: Recorder, folder: Path) -> dict[str, int]:
    store = f"sqlite:///{folder / 'service.db'}"
    for name in ("served", "other"):
        grown(store, name).store.close()
    # Analyses of alerts, which come by the clock, would be counted with whatever is asked at that time.
    with patch.object(alerts, "LOOK_EVERY", 3600.0), served(Settings(store=store)) as running:

        def ask(user: str) -> None:
            answer = running.http.post("/v1/trials/served/ask", json={"users": [user]})
            assert answer.status_code == 200, answer.text

        def look(name: str) -> None:
            """The overview of a trial, once its first analysis is there."""
            deadline = time.monotonic() + PATIENCE
            while 'id="short"' not in running.http.get(f"/trials/{name}").raise_for_status().text:
                assert time.monotonic() < deadline
                time.sleep(0.1)

        ask("north")
        asked = recording.path(lambda: ask("hill"))
        look("served")
        looked = recording.path(lambda: look("other"))
    return {"POST ask, files": len(asked.files), "the overview page, files": len(looked.files)}


@pytest.mark.parametrize("name", CAPS)
def test_nothing_grows_beyond_its_cap(measured: dict[str, int], name: str) -> None:
    assert measured[name] <= CAPS[name]


def test_contributing_has_these_numbers(measured: dict[str, int]) -> None:
    """`python -m tests.test_size` writes them there."""
    rows = re.findall(r"^\| ([^|]+) \| ([\d,]+) \| ([\d,]+) \|$", CONTRIBUTING.read_text(encoding="utf-8"), flags=re.M)
    table = {name: (int(now.replace(",", "")), int(most.replace(",", ""))) for name, now, most in rows}
    assert {name: most for name, (_, most) in table.items()} == CAPS
    far = {name: n for name, n in measured.items() if abs(table[name][0] - n) > NEAR * n}
    assert not far, f"CONTRIBUTING.md should say {far}"


def main() -> None:
    """Measure, and write the table of CONTRIBUTING.md."""
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder))
    rows = "".join(f"| {name} | {found[name]:,} | {most:,} |\n" for name, most in CAPS.items())
    table = f"<!-- counts -->\n| | now | at most |\n|---|---|---|\n{rows}<!-- /counts -->"
    text = CONTRIBUTING.read_text(encoding="utf-8")
    text = re.sub(r"<!-- counts -->.*<!-- /counts -->", lambda _: table, text, flags=re.DOTALL)
    CONTRIBUTING.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
