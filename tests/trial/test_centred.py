"""People whose own course is unknown: effects centred on the exact propensities, in a live trial."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from drimed.errors import SpecError
from drimed.learning.field.learner import Field
from drimed.policies.policy import Policy
from drimed.trial.spec import TrialSpec
from drimed.trial.stores.memory import MemoryStore
from drimed.trial.trial import Trial
from drimed.trial.verify import verify

SPEC: dict[str, Any] = {
    "name": "mood",
    "seed": 4,
    "metrics": {"mood": {}},
    "arms": {"nothing": {}, "walk": {}},
    "control": "nothing",
    "preference": {"mood": 1.0},
    "tolerance": {"relative": 0.0, "absolute": 2.0},
    "decisions": "any number",
    "model": {"kind": "people", "centred": True},
}


def test_outcomes_are_learned_with_the_probabilities_of_their_decisions_and_every_decision_is_reproduced() -> None:
    store = MemoryStore()
    trial, rng = Trial.create(SPEC, store), np.random.default_rng(0)
    for i in range(24):
        decision = trial.ask(f"p{i % 8}")
        trial.tell(decision.id, {"mood": 10 + 3 * np.sin(i) + (decision.arm == "walk") + rng.normal()})
    trial.amend(3, {"mood": 11.0}, reason="misread")
    trial.add_arm("run")
    trial.ask("p1")
    state = trial.state()
    assert isinstance(state.policy, Policy)
    assert isinstance(state.policy.learner, Field)
    assert state.policy.learner.centred
    cells = state.learned.evidence.cells.live()
    walked = cells.n @ cells.mean[:, 1]  # sums of the indicator of walking minus its probability
    played = [(d.arm == "walk") - d.probabilities["walk"] for d in trial.decisions() if d.outcome is not None]
    assert float(walked) == pytest.approx(sum(played))
    proof = verify(store, "mood")
    assert proof.ok
    assert proof.exact == proof.decisions == 25


def test_a_rule_that_only_samples_cannot_be_centred_on() -> None:
    with pytest.raises(SpecError, match="centring needs the exact probabilities"):
        TrialSpec.read(SPEC | {"policy": {"name": "people_ts"}})
