"""A few seasons of a trial with everything that can happen in them, and the proof of its log."""

from __future__ import annotations

from typing import Any

from drimed.records import Decision, Proof
from drimed.trial.store import Store
from drimed.trial.trial import Trial
from drimed.trial.verify import verify
from tests.trial.trials import outcome

NAME = "season"
SPEC: dict[str, Any] = {
    "name": NAME,
    "seed": 5,
    "metrics": {"yield": {"range": [0.0, 10.0]}, "cost": {"range": [0.0, 4.0]}},
    "arms": {"old": {}, "new": {}, "newer": {}},
    "control": "old",
    "preference": {"yield": 1.0, "cost": -0.5},
    "users": {"north": {}, "south": {"preference": {"yield": 2.0}}, "east": {"arms": ["old", "new"]}},
    "tolerance": {"absolute": 1.0},
}
PAPER: dict[str, Any] = {"model": {"kind": "paper"}}
KNOWN: dict[str, Any] = PAPER | {"noise": {"kind": "known", "sd": {"yield": 0.5, "cost": 0.3}}}
RAIN = {"context": {"rain": {"typical": 500.0, "spread": 100.0}}}
VARIANTS: dict[str, dict[str, Any]] = {
    "field": {},
    "people": {"model": {"kind": "people"}},
    "field with control plots": {"feedback": "difference"},
    "field with a covariate that forgets": RAIN | {"model": {"kind": "field", "discount": 0.9, "noise": "arm"}},
    "noise that is learned": PAPER,
    "noise that is known": KNOWN,
    "a context that scales the noise": KNOWN | RAIN | {"noise": KNOWN["noise"] | {"scale": "norm"}},
    "attributes": {"arms": {arm: {"attributes": {"dose": float(i)}} for i, arm in enumerate(SPEC["arms"])}},
    "guard budget": {"policy": {"name": "dri_med", "guard": "budget"}},
    "guard certain": {"policy": {"name": "dri_med", "guard": "certain"}, "confidence": 0.9},
    "published_dri_med": KNOWN | {"policy": {"name": "published_dri_med"}},
    "w_solid": KNOWN | {"policy": {"name": "w_solid"}},
    "clucb": {"policy": {"name": "clucb"}},
    "v_ts": KNOWN | {"policy": {"name": "v_ts"}},
    "forgetting": KNOWN | {"policy": {"name": "dri_med", "discount": 0.9}},
}  # fmt: skip


def report(spec: dict[str, Any], given: Decision, *, metrics: tuple[str, ...] = ("yield", "cost")) -> dict[str, Any]:
    """The words of `tell` for what came of a decision."""
    values = {m: v for m, v in outcome(given.id, given.arm).items() if m in metrics}
    control = {m: v for m, v in outcome(given.id + 1, "old").items() if m in metrics}
    return {"outcome": values, "control": control} if spec.get("feedback") == "difference" else {"outcome": values}


def play(spec: dict[str, Any], store: Store, *, crowd: int = 0, arms: bool = True) -> Trial:
    """A few seasons with everything that can happen in them."""
    trial = Trial.create(spec, store, actor="ann")
    context = {"rain": 450.0} if "context" in spec else None
    published = spec.get("policy", {}).get("name", "").startswith("published")
    late = []

    def everybody() -> dict[str, Any]:
        return {u: {"rain": 400.0 + 10 * i} for i, u in enumerate(trial.state().users)} if context else {}

    for season in range(1, 5):
        trial.open_episode(everybody(), number=season, unavailable={"north": ["newer"]} if season == 2 else {})
        givens = trial.ask_many() if season % 2 else [trial.ask(u, key=f"{u}-{season}") for u in trial.state().users]
        for i, given in enumerate(givens):
            if i % 3 == 0:
                late.append(given)
            elif i % 3 == 1:
                trial.tell(given.id, **report(spec, given), actor="bob")
            else:
                trial.tell(given.id, **report(spec, given, metrics=("yield",)))
                trial.tell(given.id, **report(spec, given))
        if season == 2:
            given = givens[1]
            fixed = report(spec, given)
            fixed["outcome"] = {"yield": 7.5}
            fixed.pop("control", None)
            trial.amend(given.id, fixed["outcome"], reason="misread")
            trial.change_preference("north", {"yield": 3.0, "cost": -1.0}, reason="prices")
            trial.mark_missing(late[0].id, reason="hail")
            for given in late[:2]:
                trial.tell(given.id, **report(spec, given))  # after all
            late = late[2:]
            if not published:
                for i in range(crowd):
                    trial.add_user(f"late {i}", {})
        if season == 3 and arms:
            trial.add_arm("newest", {"attributes": {"dose": 3.0}} if "attributes" in spec["arms"]["old"] else {})
            trial.retire_arm("new", reason="withdrawn")
            trial.pause(reason="holidays")
            trial.resume()
    for given in reversed(late):
        trial.tell(given.id, **report(spec, given))
    return trial


def proven(trial: Trial) -> Proof:
    found = verify(trial.store, trial.name)
    assert found.faults == []
    assert found.ok
    status = trial.status()
    assert (found.events, found.hash) == (status.events, status.hash)
    assert found.decisions == found.exact == status.decisions > 0
    return found
