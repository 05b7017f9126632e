"""Outcomes that are alike say little about how much a metric may vary."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from drimed.models.mixed.observations import Cells, Rows, Scale, add_binary_pseudo_outcomes
from drimed.models.mixed.terms import FACTORS, Range
from drimed.models.mixed.variance_components import log_posterior
from drimed.numerics.arrays import FloatArray
from drimed.records import Decision
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial
from tests.models.mixed.examples import METRICS, MODELS, data, designed, started, told

YES_OR_NO = (0.0, 1.0)
ANY = (-np.inf, np.inf)


def cells_of(*values: float, merged: bool = False, missing: int = 0) -> Cells:
    """Outcomes of one metric, each in a cell of its own or all in one."""
    n = len(values)
    keys = np.zeros((n, len(FACTORS)), np.intp)
    keys[:, 0] = 0 if merged else np.arange(n)
    pattern = np.ones(n, np.intp)
    pattern[:missing] = 0
    rows = Rows(keys, pattern, np.where(pattern > 0, values, 0.0)[:, None])
    return Cells.empty(1).add(rows).compact()


def pair(cells: Cells, ends: Range = ANY, unit: float = 1.0) -> float:
    scale = Scale(np.zeros(1), np.array([unit]), np.ones(()))
    return float(add_binary_pseudo_outcomes(cells, scale, 0, (ends,))[0])


@pytest.mark.parametrize("merged", [True, False])
def test_a_pair_of_the_two_values_is_counted_whatever_they_are(*, merged: bool) -> None:
    for low, high in ((0.0, 1.0), (3.0, 7.0), (-1e6, 1e6 + 1)):
        values = [low, high, high, low, high]
        # Of cells that have both values the ends are not known, and both are common.
        expected = 0.0 if merged else (high - low) ** 2 / 2
        assert pair(cells_of(*values, merged=merged)) == pytest.approx(expected)
    assert pair(cells_of(0.0, 1.0, 1.0), unit=0.25) == pytest.approx(8.0)


def test_more_than_two_values_count_alone() -> None:
    assert pair(cells_of(0.0, 1.0, 0.5), YES_OR_NO) == 0
    assert pair(cells_of(1.0, 2.0, 3.0, 2.0)) == 0
    assert pair(cells_of(1.0, 2.0)) == 0, "no value has come twice"
    both = cells_of(0.0, 1.0).add(Rows(np.zeros((1, len(FACTORS)), np.intp), np.ones(1, np.intp), np.full((1, 1), 2)))
    assert pair(both.compact()) == 0


def test_a_metric_that_never_varied_may_have_the_other_end_of_its_range() -> None:
    for value in YES_OR_NO:
        assert pair(cells_of(*[value] * 9), YES_OR_NO) == pytest.approx(0.5)
    assert pair(cells_of(*[40.0] * 9), (0.0, 100.0)) == pytest.approx(0.5 * 12.5**2), "a fixed cost"
    assert pair(cells_of(*[40.0] * 9)) == pytest.approx(0.5 * 20.0**2), "half of its level"
    assert pair(cells_of(*[0.0] * 9)) == pytest.approx(0.5)


@pytest.mark.parametrize("name", MODELS)
def test_what_is_counted_besides_has_the_slope_and_the_bend_of_its_value(name: str) -> None:
    field, evidence = started(name)
    structure, _, design = designed(field, told(field, evidence, data(name)))
    parameters = structure.parameters
    x = parameters.centre + 0.3 * np.random.default_rng(1).standard_normal(parameters.size)
    besides = np.array([7.0, 0.0])[: METRICS[name]]

    def value(at: FloatArray) -> float:
        return float(log_posterior(parameters, design, at, besides)[0] - log_posterior(parameters, design, at)[0])

    found, g, H = log_posterior(parameters, design, x, besides, curvature=True)
    plain, g0, H0 = log_posterior(parameters, design, x, curvature=True)
    assert found - plain == pytest.approx(value(x))
    step = 1e-4 * np.eye(parameters.size)
    slopes = [(value(x + e) - value(x - e)) / 2e-4 for e in step]
    np.testing.assert_allclose(g - g0, slopes, atol=1e-5)
    bends = [(value(x + e) - 2 * value(x) + value(x - e)) / 1e-8 for e in step]
    k = parameters.uncertain
    np.testing.assert_allclose(np.diag(H - H0)[:k], bends[:k], atol=1e-4)


RARE: dict[str, Any] = {
    "name": "rare",
    "metrics": {"alive": {"range": [0, 1]}},
    "arms": {"usual": {}, "b": {}, "c": {}},
    "control": "usual",
    "decisions": "any number",
    "preference": {"alive": 100.0},
    "tolerance": {"relative": 0.0, "absolute": 5.0},
}
KINDS: dict[str, dict[str, Any]] = {
    "people": {"model": {"kind": "people"}},
    "field": {
        "users": {"north": {"plots": ["1", "2"]}, "south": {"plots": ["1", "2"]}},
        "decisions": "one per episode",
    },
}


def all_survive(kind: str, count: int, seed: int) -> list[Decision]:
    """Decisions of a trial in which nobody has died so far, whatever they got."""
    trial = Trial.create(RARE | KINDS[kind] | {"seed": seed}, MemoryStore())
    found: list[Decision] = []
    while len(found) < count:
        episode = 1 + len(found) // 4
        given = (
            trial.ask_many(None, episode=episode) if kind == "field" else [trial.ask(f"p{len(found)}", episode=episode)]
        )
        for d in given:
            trial.tell(d.id, {"alive": 1.0})
        found += given
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_while_everybody_survives_an_arm_that_nobody_got_may_still_be_worse(kind: str) -> None:
    """One that kills half of those who get it is within its range, and is given so rarely that the promise holds."""
    found = all_survive(kind, 24, seed=2)
    tried: set[str] = set()
    untried = 0
    for d in found:
        for arm in {"b", "c"} - tried:
            if d.effects is not None and arm in d.effects:
                untried += 1
                assert d.effects[arm].low < -50
            assert 50 * d.probabilities[arm] < RARE["tolerance"]["absolute"]
        tried.add(d.arm)
    assert untried > 0
