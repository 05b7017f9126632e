"""Numbers that are computed some decisions, some users or some rows at a time are those of all at once."""

from __future__ import annotations

import numpy as np
import pytest

from drimed.evaluation.regression_effects import best_probabilities
from drimed.models.offer import Offer
from drimed.reports.regression import fit_now
from drimed.trial.dataset import Dataset, load_dataset
from drimed.trial.estimates import offers_now
from drimed.trial.store import MemoryStore
from tests.trial import many


@pytest.fixture(scope="module")
def seen() -> Dataset:
    """A trial with controls that differ and are mixed."""
    store = MemoryStore()
    trial = many.made(store, 1)
    trial.change_control("user 01", {"dose 00": 0.25, "dose 05": 0.75}, reason="r")
    trial.change_control("user 02", "dose 07", reason="r")
    many.grow(trial, 12)
    with trial.reading() as (ledger, state):
        return load_dataset(ledger, state)


def test_users_who_are_offered_the_same_are_looked_at_once_and_get_the_same(seen: Dataset) -> None:
    offers, inference = offers_now(seen.state), fit_now(seen).fit
    together = best_probabilities(inference, offers, seed=3, draws=500)
    for h in (0, 1, 2, 17):
        alone = best_probabilities(
            inference, Offer(features=offers.features[h], control=offers.control[h]), seed=3, draws=500
        )
        np.testing.assert_array_equal(together[h], alone)
