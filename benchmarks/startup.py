"""Start of the command, beside `python -c pass`: help, and verbs that need no arrays; the first use of all.

A process that loads everything, as every verb would without lazy imports, is the yardstick. The first use begins
without compiled code and is told in time by the clock, because a second process helps: only a quiet machine tells it.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.measure import Part, Row, Size, Spread, clock_seconds, compared
from drimed.trial import template

LARGEST_SHARE = 1 / 3  # of the time that it takes to load everything
FIRST_ANSWER, FIRST_REHEARSAL = 10, 60  # seconds
VERBS = ("--help", "--version", "policies", "trial --help", "trial template", "token --help", "serve --help")
LOAD_ALL = (
    "from drimed.cli.main import VERBS, load; [load(verb) for verb in VERBS]; "
    "import drimed.trial.trial, drimed.trial.store, drimed.service.app"
)


def run(size: Size) -> Part:
    """Processor time of each command, beside that of loading everything."""
    verbs = VERBS[:1] if size == "smallest" else VERBS
    timed = {verb: partial(_seconds, "-m", "drimed.cli.main", *verb.split()) for verb in verbs}
    timed["python -c pass"] = partial(_seconds, "-c", "pass")
    rows = compared(timed, partial(_seconds, "-c", LOAD_ALL), {"smallest": 1, "quick": 1, "full": 7}[size], scale=1000)
    part = Part("Starting the command", "ms", "Ratio: to the time that it takes to load everything.")
    for name, row in rows.items():
        part.rows.append(row if name not in VERBS else row.with_goal(at_most=LARGEST_SHARE))
    if size == "full":
        asking = ("init maize.toml", "ask maize-nitrogen --user north --context rain=410")
        for name, commands, limit in (
            ("the first answer, init and ask", asking, FIRST_ANSWER),
            ("the first rehearsal's page", ("rehearse maize.toml",), FIRST_REHEARSAL),
        ):
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # the second process goes on
                took = 1000 * clock_seconds(partial(_first_use, folder, commands))
            part.rows.append(Row(name, Spread.of([took]), at_most=1000 * limit))
    return part


def _first_use(folder: str, commands: tuple[str, ...]) -> None:
    """Commands of `drimed trial` in an empty folder, where nothing was compiled."""
    (Path(folder) / "maize.toml").write_text(template(), encoding="utf-8")
    environment = os.environ | {"NUMBA_CACHE_DIR": str(Path(folder) / "compiled")}
    for words in commands:
        command = [sys.executable, "-m", "drimed.cli.main", "trial", *words.split()]
        subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=True)


def _seconds(*words: str) -> float:
    """Processor time of one Python process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
