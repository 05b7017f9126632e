"""The same state for a decision, and the same numbers for an effect, over HTTP, on pages, in reports and in exports."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from drimed.formatting import short
from drimed.records import STATES, AskRequest
from drimed.reports.page import write_report
from drimed.trial import export, sheets
from drimed.trial.tables import read
from drimed.trial.trial import Trial
from tests.service.pages.visiting import readable
from tests.service.serving import Running, wait_until
from tests.trial.fields import FIELD, SEASON
from tests.trial.trials import BUSY, outcome

PLOTS: dict[str, Any] = BUSY | {"name": "plots", "feedback": "difference"}
BOTH = {"yield": 5.0, "cost": 2.0}


def test_a_decision_is_in_the_same_state_everywhere(running: Running, http: httpx.Client, tmp_path: Path) -> None:
    """Half of a control plot is partial; what is partial can be given up; what was given up can still come."""
    expected = _every_state(http)
    trial = Trial("plots", running.service.store)
    page = http.get("/trials/plots/log").text
    shown = {int(n): s for n, s in re.findall(r"/decisions/(\d+)\">.*?<span class=\"state (\w+)\">\2</span>", page)}
    export.write(trial, tmp_path / "all.csv")
    found = {
        "python": {d.id: d.state for d in trial.decisions()},
        "http": {n: http.get(f"/v1/trials/plots/decisions/{n}").json()["state"] for n in expected},
        "search": {
            d["id"]: s
            for s in STATES
            for d in http.get("/v1/trials/plots/decisions", params={"state": s}).json()["items"]
        },
        "page": shown,
        "export over http": _exported(http.get("/v1/trials/plots/export?format=csv").text),
        "export": _exported((tmp_path / "all.csv").read_text(encoding="utf-8")),
    }
    for where, states in found.items():
        assert states == expected, where
    counts = Counter(expected.values())
    status = http.get("/v1/trials/plots").json()
    assert {s: status[s] for s in STATES} == counts
    counted = ", ".join(f"{counts[s]} {s}" for s in ("complete", "partial", "pending", "missing"))
    report = write_report(trial, tmp_path).read_text(encoding="utf-8")
    for text in (_analysed(http, "/trials/plots").text, report):
        assert f"outcomes: {counted}." in readable(text)


@pytest.mark.parametrize(
    ("change", "source"),
    [
        ({}, "model"),
        ({"model": {"kind": "paper"}}, "regression"),
        ({"model": {"kind": "paper"}, "policy": {"name": "oful"}}, "regression"),
    ],
    ids=["the field", "the policy's own fit", "a fit from the log"],
)
def test_an_effect_has_the_same_ranges_everywhere(
    running: Running, http: httpx.Client, tmp_path: Path, change: dict[str, Any], source: str
) -> None:
    http.post("/v1/trials", json=BUSY | {"name": "same"} | change).raise_for_status()
    for _ in range(6):
        for d in http.post("/v1/trials/same/ask", json={}).raise_for_status().json()["decisions"]:
            told = {"outcome": outcome(d["id"], d["arm"])}
            http.post(f"/v1/trials/same/decisions/{d['id']}/outcome", json=told).raise_for_status()
    served = _analysed(http, "/v1/trials/same/effects").raise_for_status().json()["items"]
    report = write_report(Trial("same", running.service.store), tmp_path).read_text(encoding="utf-8")
    with (tmp_path / "effects.csv").open(encoding="utf-8") as file:
        written = [row for row in csv.DictReader(file) if row["who"] in BUSY["users"]]
    assert len(served) == len(written) == 4 * 3
    for effect, row in zip(served, written, strict=True):
        texts = {name: "" if value is None else str(value) for name, value in effect.items()}
        assert texts == {name: row[name] for name in effect}
    page = readable(_analysed(http, "/trials/same/results/effects?who=site+2").text)
    for effect in served:
        if effect["who"] == "site 2" and effect["arm"] != "old":
            likely, sure = (f"{short(effect[a])} to {short(effect[b])}" for a, b in (_LIKELY, _GUARANTEED))
            assert re.search(rf"{effect['arm']} .*? {short(effect['estimate'])} {likely} {sure} {source}", page)
            if f"site 2 {effect['arm']} old" in readable(report):  # the best one is in the table of the report
                assert f"{short(effect['estimate'])} {likely} {sure}" in readable(report)


def test_a_place_and_what_is_known_about_it_are_the_same_everywhere(
    running: Running, http: httpx.Client, tmp_path: Path
) -> None:
    """Asked for by a sheet, as on the command line; read in Python, over HTTP, on pages and in exports."""
    http.post("/v1/trials", json=FIELD).raise_for_status()
    trial = Trial("field", running.service.store)
    with trial.writing() as tx:
        sheets.ask_sheet(tx, read(SEASON), AskRequest(episode=1))
    expected = [("north", "A1", "A"), ("north", "A2", "A"), ("north", "B1", "B"), ("south", "", "")]
    export.write(trial, tmp_path / "all.csv")
    exports = [http.get("/v1/trials/field/export").text, (tmp_path / "all.csv").read_text(encoding="utf-8")]
    rows = [list(csv.DictReader(io.StringIO(text))) for text in exports]
    assert rows[0] == rows[1]
    page = re.findall(
        r'/decisions/\d+">\d+</a></td><td class="n">1</td><th scope="row">(\w+)</th><td>(\w*)</td><td>(\w*)</td>',
        http.get("/trials/field/log").text,
    )
    handed = list(csv.DictReader(io.StringIO(http.get("/trials/field/pending.csv").text.lstrip("\ufeff"))))
    found = {
        "python": [(d.user, d.plot or "", d.block or "") for d in trial.decisions()],
        "http": [
            (d["user"], d["plot"] or "", d["block"] or "")
            for d in reversed(http.get("/v1/trials/field/decisions").json()["items"])
        ],
        "page": page[::-1],
        "sheet": [(row["user"], row["plot"], row["block"]) for row in handed],
        "export": [(row["user"], row["plot"], row["block"]) for row in rows[0]],
    }
    for where, places in found.items():
        assert places == expected, where
    about = {
        d["name"]: d["attributes"] | {"group": d["group"]} for d in http.get("/v1/trials/field/users").json()["items"]
    }
    for row in rows[0]:
        exported = {"ph": float(row["attribute_ph"]), "soil": row["attribute_soil"], "group": row["group"]}
        assert exported == about[row["user"]]
        story = readable(http.get(f"/trials/field/decisions/{row['decision']}").text)
        assert f"group {row['group']} ph {row['attribute_ph'].removesuffix('.0')} soil {row['attribute_soil']}" in story


_LIKELY, _GUARANTEED = ("likely_low", "likely_high"), ("low", "high")


def _every_state(http: httpx.Client) -> dict[int, str]:
    """A trial with control plots, and the state in which each of its decisions should be."""
    http.post("/v1/trials", json=PLOTS).raise_for_status()
    ids = [d["id"] for _ in range(2) for d in http.post("/v1/trials/plots/ask", json={}).json()["decisions"]]

    def tell(i: int, own: dict[str, float], plot: dict[str, float]) -> None:
        body = {"outcome": own, "control": plot}
        http.post(f"/v1/trials/plots/decisions/{ids[i]}/outcome", json=body).raise_for_status()

    def give_up(i: int) -> None:
        http.post(f"/v1/trials/plots/decisions/{ids[i]}/missing", json={"reason": "hail"}).raise_for_status()

    tell(0, BOTH, BOTH)
    tell(1, BOTH, {"yield": 4.0})
    tell(2, {"yield": 5.0}, {"yield": 4.0})
    give_up(3)
    tell(4, BOTH, {"yield": 4.0})
    give_up(4)
    give_up(5)
    tell(5, BOTH, BOTH)
    states = ["complete", "partial", "partial", "missing", "missing", "complete", "pending", "pending"]
    return dict(zip(ids, states, strict=True))


def _analysed(http: httpx.Client, address: str) -> httpx.Response:
    """An answer that rests on an analysis, once there is one: a busy machine may need a while."""

    def asked() -> httpx.Response | None:
        answer = http.get(address)
        return answer if answer.status_code == httpx.codes.OK and "data-reload" not in answer.text else None

    return wait_until(asked)


def _exported(text: str) -> dict[int, str]:
    return {int(row["decision"]): row["state"] for row in csv.DictReader(io.StringIO(text))}
