"""Random names from all of Unicode: they come through files, sheets, screen and log as they are, or are refused.

DRIMED_NAMES says how many.
"""

from __future__ import annotations

import json
import os
import random
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from drimed.errors import DrimedError, SpecError
from drimed.trial.names import tidy
from drimed.trial.spec import TrialSpec
from drimed.trial.tables import read, sheet
from tests.cli.commanding import CommandLine
from tests.trial.drawn_names import names
from tests.trial.fields import PATIENTS
from tests.trial.trials import SMALL

NAMES = int(os.environ.get("DRIMED_NAMES", "200"))
TOGETHER = 12  # users of one trial: the model learns about each of them
ACTING = ("Cc", "Cf", "Cs", "Zl", "Zp")


def spec(found: list[str]) -> dict[str, Any]:
    """A trial in which everything has these names."""
    users = {name: {"group": f"={name}", "attributes": {"soil": f"-{name}"}} for name in found}
    arms: dict[str, Any] = {"old": {}, **{name: {} for name in found[:4]}}
    context = {"sky": {"levels": [f"+{name}" for name in found]}}
    return SMALL | {"name": "names", "users": users, "arms": arms, "context": context}


def accepted(drawn: list[str]) -> list[str]:
    """Those that a trial takes, in the form in which it takes them."""
    found: dict[str, None] = {}
    for name in drawn:
        try:
            one = TrialSpec.read(spec([name]))
            TrialSpec.read(SMALL | {"metrics": {name: {}}, "preference": {name: 1.0}})
        except SpecError:
            continue
        (user,) = one.users
        assert user == tidy(name)
        found[user] = None
    return [name for name in found if name != "old"]


def calm(text: str) -> None:
    """Nothing in a text acts on a terminal."""
    wrong = {c for c in text if c != "\n" and unicodedata.category(c) in ACTING}
    assert not wrong, wrong


def test_names_come_through_sheets_or_are_refused() -> None:
    drawn = names(random.Random(1), 10 * NAMES)
    found = accepted(drawn)
    assert len(drawn) / 8 < len(found) < len(drawn)
    asks = [{"user": name, "sky": f"+{name}"} for name in found]
    for suffix in (".csv", ".xlsx", ".json"):
        assert [row.cells for row in read(sheet(asks, suffix), f"s{suffix}").rows] == asks


@pytest.mark.parametrize("seed", [1, 2])
def test_names_come_through_a_season_the_screen_and_the_log(tmp_path: Path, seed: int) -> None:
    line, found = CommandLine(tmp_path), accepted(names(random.Random(seed), NAMES))[:TOGETHER]
    assert len(found) == TOGETHER
    calm(line.ok("init", line.write("n.json", json.dumps(spec(found)))))
    asks = [{"user": name, "sky": f"+{found[-1 - i]}"} for i, name in enumerate(found)]
    for suffix in (".csv", ".xlsx"):
        (tmp_path / f"s{suffix}").write_bytes(sheet(asks, suffix))
        out = tmp_path / f"a{suffix}"
        calm(line.ok("ask", "names", str(tmp_path / f"s{suffix}"), "--episode", "1", "--out", str(out)))
        rows = [row.cells for row in read(out.read_bytes(), out.name).rows]
        assert [row["user"] for row in rows] == found
        assert [row["sky"] for row in rows] == [ask["sky"] for ask in asks]
    (tmp_path / "o.csv").write_bytes(sheet([row | {"yield": 5 + i % 4} for i, row in enumerate(rows)], ".csv"))
    calm(line.ok("tell", "names", str(tmp_path / "o.csv")))
    calm(line.ok("decisions", "names", "--limit", str(len(found))))
    calm(line.ok("log", "names", "--limit", "1000"))
    events = [json.loads(one) for one in line.ok("log", "names", "--json").splitlines()]
    assert [e["user"] for e in events if e["kind"] == "decision"] == found
    calm(line.ok("export", "names", "--out", str(tmp_path / "log.csv")))
    exported = [row.cells for row in read((tmp_path / "log.csv").read_bytes(), "log.csv").rows]
    assert [(row["user"], row["group"]) for row in exported] == [(name, f"={name}") for name in found]


def test_who_joins_has_a_name_in_its_one_form_and_what_is_none_is_refused_in_words_that_do_not_act(
    tmp_path: Path,
) -> None:
    line = CommandLine(tmp_path)
    line.ok("init", line.write("s.json", json.dumps(PATIENTS | {"attributes": {}})))
    joined: set[str] = set()
    for name in names(random.Random(3), NAMES // 4):
        result = line.run("ask", "patients", f"--user={name}")
        calm(result.output)
        if result.exception is None:
            joined.add(tidy(name))
        else:
            assert isinstance(result.exception, DrimedError), result.exception
    assert joined
    events = [json.loads(one) for one in line.ok("log", "patients", "--json", "--kind", "user").splitlines()]
    assert sorted(e["user"] for e in events) == sorted(joined)
