"""The report: one page that stands alone, with everything a reader needs and nothing dangerous in it."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from drimed.trial.reporting.write import summary, write_report
from drimed.trial.stores.memory import MemoryStore
from drimed.trial.trial import Trial
from tests.trial.analysis.test_analyse import SPEC, play


def test_the_page_stands_alone_and_shows_everything(tmp_path: Path) -> None:
    page = write_report(play(SPEC, 8), tmp_path / "r").read_text(encoding="utf-8")
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert page.count("data:image/png;base64") == 4
    for heading in (
        "In short",
        "Effects against control",
        "Was anybody worse off?",
        "Do the assumptions hold?",
        "Data",
    ):
        assert heading in page
    assert {p.name for p in (tmp_path / "r").iterdir()} >= {
        "effects.csv",
        "allocation.csv",
        "effects.png",
        "reward.pdf",
    }
    with (tmp_path / "r" / "effects.csv").open(encoding="utf-8") as file:
        assert {row["who"] for row in csv.DictReader(file)} >= {"all users", "even", "u0"}


def test_an_empty_trial_has_a_page_too(tmp_path: Path) -> None:
    page = write_report(Trial.create(SPEC, MemoryStore()), tmp_path).read_text(encoding="utf-8")
    assert "0 decisions" in page


def test_names_cannot_smuggle_markup_into_the_page(tmp_path: Path) -> None:
    spec = SPEC | {"users": {"<b>x<b>": {}}, "about": "<script>alert(1)<script>"}
    page = write_report(play(spec, 2), tmp_path).read_text(encoding="utf-8")
    assert "<script>" not in page
    assert "<b>x" not in page


def test_the_summary_needs_no_statistics() -> None:
    from drimed.trial.analysis.analyse import analyse

    said = " ".join(summary(analyse(play(SPEC, 30))))
    assert "6 of 6 users" in said
    assert "more than giving the control" in said
