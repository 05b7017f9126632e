from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from drimed.errors import InputError, ShapeError
from drimed.models.offer import Shape, make_offer
from drimed.numerics.arrays import FloatArray
from drimed.policies.protocol import from_arrays, to_arrays
from drimed.policies.registry import make
from tests.examples import same
from tests.worlds import SMALL, steps, world


@dataclass(frozen=True)
class Inner:
    values: FloatArray
    nothing: FloatArray | None


@dataclass(frozen=True)
class Outer:
    inner: Inner
    count: int


STATE = Outer(Inner(np.array([1.0, np.nan, -0.0]), None), 7)


def test_arrays_have_dotted_names_and_nothing_is_left_out_but_none() -> None:
    arrays = to_arrays(STATE)
    assert sorted(arrays) == ["count", "inner.values"]
    assert all(isinstance(a, np.ndarray) for a in arrays.values())


def test_what_was_written_is_read_back() -> None:
    like = Outer(Inner(np.zeros(3), None), 0)
    back = from_arrays(like, to_arrays(STATE))
    assert same(back, STATE)
    assert isinstance(back.count, int)


def test_a_policy_state_holds_no_object_that_needs_pickle() -> None:
    last = list(steps(make("dri_med", guard="penalty", discount=0.9), world()))[-1]
    for name, array in to_arrays(last.after).items():
        assert array.dtype.kind in "fiub", name


def test_a_missing_array_is_named() -> None:
    arrays = to_arrays(STATE)
    del arrays["inner.values"]
    with pytest.raises(InputError, match=r"the stored state has no 'inner\.values'; it holds count"):
        from_arrays(STATE, arrays)


def test_a_state_of_another_problem_is_refused() -> None:
    arrays = to_arrays(make("oful").init(SMALL))
    other = make("oful").init(SMALL, (2,))
    with pytest.raises(InputError, match=r"stored 'evidence\.ridge\.V' has shape \(3, 3\), .* needs \(2, 3, 3\)"):
        from_arrays(other, arrays)


def test_a_discounted_state_does_not_fit_an_undiscounted_policy_and_the_other_way_round() -> None:
    plain, discounted = make("w_oful"), make("w_oful", discount=0.9)
    with pytest.raises(InputError, match=r"has no 'evidence\.ridge\.V2'"):
        from_arrays(discounted.init(SMALL), to_arrays(plain.init(SMALL)))
    with pytest.raises(InputError, match=r"ridge\.V2"):
        from_arrays(plain.init(SMALL), to_arrays(discounted.init(SMALL)))


@pytest.mark.parametrize(
    ("draws", "error", "message"),
    [
        ([2.0], InputError, "draws must be uniforms between 0 and 1, got"),
        ([np.nan], InputError, "draws must be uniforms between 0 and 1, got"),
        (0.4, ShapeError, "draws must have shape .* and one axis more"),
    ],
)
def test_draws_that_are_no_uniforms_are_refused(draws: Any, error: type[InputError], message: str) -> None:
    policy, offer = make("med"), make_offer(features=np.eye(2), control=[1.0, 0.0])
    state = policy.init(Shape(d=2, K=2, M=1, H=1))
    with pytest.raises(error, match=message):
        policy.decide(state, offer, draws)
    assert policy.decide(state, offer, [0.4]).action == 0  # type: ignore[arg-type]  # a list will do
