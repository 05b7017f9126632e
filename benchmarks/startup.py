"""Start of the command, beside `python -c pass`: help, and verbs that need no arrays.

A process that loads everything, as every verb would without lazy imports, is the yardstick.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from functools import partial

from benchmarks.measure import Part, Size, compared

LARGEST_SHARE = 1 / 3  # of the time that it takes to load everything
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
    return part


def _seconds(*words: str) -> float:
    """Processor time of one Python process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
