from __future__ import annotations

import numpy as np
import pytest

from drimed import streams
from drimed.errors import InputError


def test_a_stream_belongs_to_its_seed_and_its_name() -> None:
    base = streams.generator(1, "noise").random(4)
    assert np.array_equal(streams.generator(1, "noise").random(4), base)
    assert not np.array_equal(streams.generator(1, "contexts").random(4), base)
    assert not np.array_equal(streams.generator(2, "noise").random(4), base)


def test_streams_of_neighbouring_seeds_and_names_are_unrelated() -> None:
    """Correlations of 20 streams of 10,000 draws: each is within 5 standard errors, .05, of none."""
    draws = [
        streams.generator(s, name).standard_normal(10_000) for s in range(5) for name in ("a", "b", "noise", "policy")
    ]
    correlation = np.corrcoef(draws)
    assert np.abs(correlation - np.eye(20)).max() < 0.05


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 9])
def test_draws_of_a_decision_do_not_depend_on_what_else_is_asked(width: int) -> None:
    whole = streams.uniforms(7, "policy", 0, 50, width)
    assert whole.shape == (50, width)
    for start, count in ((0, 1), (13, 1), (13, 20), (49, 1)):
        assert np.array_equal(streams.uniforms(7, "policy", start, count, width), whole[start : start + count])


def test_draws_are_addressed_by_seed_name_and_decision() -> None:
    base = streams.uniforms(7, "policy", 0, 5, 2)
    assert not np.array_equal(streams.uniforms(8, "policy", 0, 5, 2), base)
    assert not np.array_equal(streams.uniforms(7, "audit", 0, 5, 2), base)
    assert streams.uniforms(0, "policy", 3, 0, 2).shape == (0, 2)
    far = streams.uniforms(7, "policy", 10**15, 3, 2)
    assert np.array_equal(streams.uniforms(7, "policy", 10**15 + 1, 1, 2)[0], far[1])
    assert len(np.unique(far)) == 6


def test_draws_are_uniform_in_the_half_open_unit_interval() -> None:
    """100,000 draws in 20 equal cells; chi-squared with 19 degrees of freedom is above 60 once in 300,000 seeds."""
    u = streams.uniforms(0, "policy", 0, 25_000, 4).ravel()
    assert u.min() >= 0.0
    assert u.max() < 1.0
    counts = np.bincount((u * 20).astype(int), minlength=20)
    assert float(((counts - 5000) ** 2 / 5000).sum()) < 60


@pytest.mark.parametrize(("start", "count", "width"), [(-1, 1, 1), (0, -1, 1), (0, 1, 0)])
def test_a_senseless_address_is_refused(start: int, count: int, width: int) -> None:
    with pytest.raises(InputError, match=f"got start={start}, count={count}, width={width}"):
        streams.uniforms(0, "policy", start, count, width)


def test_a_negative_seed_is_refused() -> None:
    for ask in (lambda: streams.generator(-1, "a"), lambda: streams.uniforms(-1, "a", 0, 1, 1)):
        with pytest.raises(InputError, match="seed must be a non-negative integer, got -1"):
            ask()
