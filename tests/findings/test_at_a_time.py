"""Numbers that are computed some decisions, some users or some rows at a time are those of all at once."""

from __future__ import annotations

import numpy as np
import pytest

from drimed.evaluation.calibration import calibration, calibration_of
from drimed.evaluation.effects import best_probabilities
from drimed.evaluation.log import make_log
from drimed.evaluation.residual_tests import OwnLines, Space, fit
from drimed.findings.regression import fit_now
from drimed.learning.offer import Offer
from drimed.trial.gather import Gathered, gather
from drimed.trial.model_ranges import offers_now
from drimed.trial.stores.memory import MemoryStore
from tests.trial import many


@pytest.fixture(scope="module")
def seen() -> Gathered:
    """A trial with controls that differ and are mixed."""
    store = MemoryStore()
    trial = many.made(store, 1)
    trial.change_control("user 01", {"dose 00": 0.25, "dose 05": 0.75}, reason="r")
    trial.change_control("user 02", "dose 07", reason="r")
    many.grow(trial, 12)
    with trial.reading() as (ledger, state):
        return gather(ledger, state)


def test_a_log_in_pieces_is_calibrated_like_the_whole() -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(4), 500)
    action = np.array([rng.choice(4, p=row) for row in p])
    log = make_log(action=action, reward=np.zeros(500), probabilities=p, arms=4)
    whole, parts = calibration(log, bins=5), calibration_of((log.rows(i, i + 77) for i in range(0, 500, 77)), bins=5)
    for name in (
        "expected",
        "realised",
        "z",
        "p_value",
        "anytime_p",
        "bin_count",
        "bin_expected",
        "bin_realised",
        "bin_p",
    ):
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), rtol=1e-10, err_msg=name)


def test_users_who_are_offered_the_same_are_looked_at_once_and_get_the_same(seen: Gathered) -> None:
    offers, inference = offers_now(seen.state), fit_now(seen).fit
    together = best_probabilities(inference, offers, seed=3, draws=500)
    for h in (0, 1, 2, 17):
        alone = best_probabilities(
            inference, Offer(features=offers.features[h], control=offers.control[h]), seed=3, draws=500
        )
        np.testing.assert_array_equal(together[h], alone)


def test_lines_of_levels_are_fitted_as_if_they_were_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    n = 300
    y, x, arm, user = rng.normal(size=n), rng.normal(size=(n, 1)), rng.integers(0, 6, n), rng.integers(0, 20, n)
    lines = OwnLines(x, arm)
    dense = lines[slice(None)]
    np.testing.assert_array_equal(np.stack(list(lines.T), 1), dense)
    whole = fit(y, Space((user, arm), (dense,)), leverage=True)
    monkeypatch.setattr("drimed.evaluation.residual_tests.ROWS", 37)
    parts = fit(y, Space((user, arm), (lines,)), leverage=True)
    assert whole is not None
    assert parts is not None
    assert whole.rank == parts.rank == 20 + 5 + 6
    levels = [(f[:, None] == np.arange(f.max() + 1)).astype(float) for f in (user, arm)]
    X = np.concatenate([*levels, dense], 1)
    hat = X @ np.linalg.pinv(X)
    for found in (whole, parts):
        np.testing.assert_allclose(found.rest, y - hat @ y, atol=1e-10)
        assert found.leverage is not None
        np.testing.assert_allclose(found.leverage, np.diag(hat), atol=1e-10)
