"""The interface of policies, a check that it is kept, and states as plain named arrays."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from drimed.errors import ConfigError, DrimedError, InputError
from drimed.models.noise_estimation import NoiseModel
from drimed.models.offer import Fit, Offer, Outcome, Shape, make_offer
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray
from drimed.policies.guards.base import Draw
from drimed.policies.guards.margin import Tolerance

_PROBLEM = Shape(d=3, K=3, M=2, H=1)  # that a policy from outside is tried on
_ROUND_OFF = 1e-9  # by which probabilities may miss 1

S = TypeVar("S")


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """The parts of a policy and its needs: for setting it up and for describing it."""

    learner: str  # learner, rule and guard in a few words
    rule: str
    guard: str
    settings: frozenset[str]  # what `make` accepts besides the policy's name
    feedback: str  # "reward" or "vector": what it learns from
    weighting: str  # "none", "known" or "learned": what it must be told, or learns, about the noise
    noise_bound: float
    promise: str
    protects: str  # how strong that is: see drimed.policies.guards.base
    tolerance: Tolerance | None  # None: it does not compare with the control
    confidence: float | str | None  # of the promise, where it has one


class Effects(NamedTuple):
    """Of each arm against the control: (..., n, K) each."""

    estimate: FloatArray
    above: FloatArray  # how far the interval reaches
    below: FloatArray  # the same array where it is symmetric


class AnyPolicy(Protocol):
    """The interface that simulations and trials use. A state is a dataclass of arrays and numbers; methods are pure."""

    needs_contexts_at_opening: ClassVar[bool] = False  # whether `begin_episode` looks at the offers of all users

    @property
    def traits(self) -> Traits: ...

    def init(self, shape: Shape, batch: tuple[int, ...] = (), episodes: int = 0) -> Any:
        """The state without any outcome, after so many episodes: older outcomes are added with `late`."""

    def begin_episode(self, state: Any, offer: Offer) -> Any: ...

    def decide(self, state: Any, offer: Offer, draws: FloatArray) -> Draw:
        """Arms for the n users of the offer (..., n), from one state: draws (..., n, draws_needed)."""

    def commit(self, state: Any, offer: Offer, draw: Draw) -> Any: ...

    def usable(self, observed: BoolArray, preference: FloatArray) -> BoolArray:
        """Whether it can learn from outcomes of which these metrics were observed: (..., M) -> (...)."""

    def observe(self, state: Any, offer: Offer, action: IntArray, outcome: Outcome, late: int = 0) -> Any: ...

    def forget(self, state: Any, offer: Offer, action: IntArray, outcome: Outcome, late: int = 0) -> Any: ...

    def settle(self, state: Any) -> Any:
        """The state to decide on, with all that learning has put off."""
        return state

    def update(self, state: Any, offer: Offer, draw: Draw, outcome: Outcome) -> Any:
        """Give out and learn at once."""
        return self.observe(self.commit(state, offer, draw), offer, draw.action, outcome)

    def lost_digits(self, before: Any, after: Any) -> bool:
        """Whether `forget` left round-off: then the evidence has to be added up again from `init`."""

    def with_evidence(self, state: Any, evidence: Any) -> Any:
        """The first state, with what the second one has learned from outcomes."""

    def theta(self, state: Any) -> FloatArray: ...

    def effects(self, state: Any, offer: Offer, confidence: float | str, draw: Draw | None = None) -> Effects | None:
        """Each arm's expected reward minus the control's, with its interval.

        None where the policy estimates something else. A draw from this state and offer saves computing them again.
        """
        del state, offer, confidence, draw
        return None

    def inference(self, state: Any) -> tuple[Fit, NoiseModel | None] | None:
        """The regression on whole outcome vectors and its noise model; None where it learns from less."""
        del state
        return None

    def draws_needed(self, shape: Shape) -> int:
        """The number of uniforms that a decision consumes."""
        del shape
        return 1


def check_policy(policy: AnyPolicy, name: str = "the policy") -> None:
    """Refuse a policy that lacks a part of the contract, or breaks it on a small problem; says which."""
    check_has(policy, AnyPolicy, f"{name} is no policy")
    try:
        _try(policy, name)
    except DrimedError:
        raise
    except Exception as error:  # whatever the code of others raises
        raise ConfigError(f"{name} fails on a small problem: {type(error).__name__}: {error}") from error


def check_has(thing: Any, protocol: type, refusal: str) -> None:
    """Refuse what lacks something that the protocol names."""
    named = {n for n in {*protocol.__annotations__, *vars(protocol)} if not n.startswith("_")}
    lacking = sorted(name for name in named if not hasattr(thing, name))
    if lacking:
        raise ConfigError(f"{refusal}: it lacks {', '.join(lacking)}")


def to_arrays(state: Any, prefix: str = "") -> dict[str, NDArray[Any]]:
    """Every array of a state under its dotted name; what is None is left out, and so is room for more (`live`)."""
    arrays: dict[str, NDArray[Any]] = {}
    for f in fields(state):
        value, name = getattr(state, f.name), prefix + f.name
        if is_dataclass(value):
            arrays |= to_arrays(value.live() if hasattr(value, "live") else value, name + ".")
        elif value is not None:
            arrays[name] = np.asarray(value)
    return arrays


def from_arrays(like: S, arrays: dict[str, NDArray[Any]], prefix: str = "") -> S:
    """The state that `to_arrays` wrote; `like` is any state of the same policy, for instance `policy.init(...)`."""
    values: dict[str, Any] = {}
    for f in fields(like):  # type: ignore[arg-type]  # S is always a dataclass of arrays
        value, name = getattr(like, f.name), prefix + f.name
        if is_dataclass(value) and not isinstance(value, type):
            values[f.name] = from_arrays(value, arrays, name + ".")
        elif value is None:
            extra = [key for key in arrays if key == name or key.startswith(name + ".")]
            if extra and not f.metadata.get("grows", False):
                raise InputError(f"the stored state has {extra[0]!r}, which this policy does not use")
            values[f.name] = arrays.get(name)
        elif name not in arrays:
            raise InputError(f"the stored state has no {name!r}; it holds {', '.join(sorted(arrays))}")
        else:
            stored = arrays[name]
            grown = f.metadata.get("grows", False) and np.ndim(value) == stored.ndim
            if np.shape(value) != stored.shape and not grown:
                raise InputError(f"stored {name!r} has shape {stored.shape}, this policy needs {np.shape(value)}")
            values[f.name] = int(stored) if isinstance(value, int) else stored
    return type(like)(**values)


def _try(policy: AnyPolicy, name: str) -> None:
    """One user, three arms of which two are available, two rounds; then two runs side by side with other outcomes."""
    maps = np.array([[[1.0, 0.0, 0.5], [0.0, 1.0, 0.0]], [[0.0, 1.0, 0.5], [1.0, 0.0, 0.0]], [[1.0, 1.0, 0.0]] * 2])
    offer = make_offer(
        maps=maps, preference=[0.7, 0.3], covariance=[np.eye(2)] * 3, control=[1.0, 0.0, 0.0],
        available=[True, True, False],
    ).broadcast((1,))  # fmt: skip
    width = policy.draws_needed(_PROBLEM)
    state = policy.begin_episode(policy.init(_PROBLEM), offer)
    for u in (0.3, 0.7):
        state, draws = policy.settle(state), np.full((1, width), u)
        draw = policy.decide(state, offer, draws)
        p = draw.probabilities
        if p.shape != (1, 3) or not (p >= 0).all() or abs(p.sum() - 1) > _ROUND_OFF:
            raise ConfigError(f"{name} must give one user with 3 arms probabilities of shape (1, 3) and sum 1, got {p}")
        if p[0, 2] > 0:
            raise ConfigError(f"{name} gives an arm that is not available the probability {p[0, 2]}")
        if not np.array_equal(policy.decide(state, offer, draws).probabilities, p):
            raise ConfigError(
                f"{name} must answer the same question in the same way, got other probabilities the second time: it "
                "may keep no memory and draw no random numbers of its own; ask.draws has uniforms"
            )
        state = policy.update(state, offer, draw, Outcome(np.array([0.5]), np.array([[0.5, 0.5]])))

    def second(batch: tuple[int, ...], reward: FloatArray, vector: FloatArray) -> FloatArray:
        many, uniforms = offer.broadcast((*batch, 1)), np.full((*batch, 1, width), 0.3)
        state = policy.settle(policy.begin_episode(policy.init(_PROBLEM, batch), many))
        first = policy.decide(state, many, uniforms)
        state = policy.settle(policy.update(state, many, first, Outcome(reward, vector)))
        return policy.decide(state, many, uniforms).probabilities

    rewards, vectors = np.array([[2.0], [-2.0]]), np.array([[[3.0, 1.0]], [[-3.0, -1.0]]])
    both, alone = second((2,), rewards, vectors), [second((), rewards[i], vectors[i]) for i in range(2)]
    if both.shape != (2, 1, 3) or not np.allclose(both, alone, rtol=0, atol=_ROUND_OFF):
        raise ConfigError(
            f"{name} must compute each run of a batch as if it were alone: two runs with 3 arms side by side got "
            f"{both.tolist()}, one after the other {np.array(alone).tolist()}; the arms are the last axis"
        )
