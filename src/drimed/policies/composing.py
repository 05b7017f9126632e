"""Policies from parts: settings go to whichever part knows them, and what comes from outside is checked first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from inspect import signature
from typing import Any

import numpy as np

from drimed.errors import ConfigError, DrimedError, UnknownNameError
from drimed.guards.guard import Guard
from drimed.guards.margin import Tolerance
from drimed.learning.learner import Learner
from drimed.learning.offer import Outcome, Shape, make_offer
from drimed.policies.plugins import is_place, load
from drimed.policies.policy import AnyPolicy, Policy, settings_of
from drimed.policies.registry import GUARDS, RULES
from drimed.rules.rule import Rule

_PROBLEM = Shape(d=3, K=3, M=2, H=1)  # that a policy from outside is tried on
_ROUND_OFF = 1e-9  # by which probabilities may miss 1


def compose(
    settings: Mapping[str, Any],
    *,
    rule: Any,
    guard: Any,
    learner: Any = Learner,
    defaults: Mapping[str, Any] | None = None,
) -> Policy:
    """A policy of these parts, classes or instances; the settings `rule` and `guard` replace one.

    A setting that two parts know, such as delta, means the same to both. A default that no part knows is left out: it
    belonged to a part that was replaced.
    """
    rest = dict(settings)
    rule = _part("rule", rest.pop("rule", rule), RULES, Rule)
    guard = _part("guard", rest.pop("guard", guard), GUARDS, Guard)
    known = settings_of(learner, rule, guard)
    for unknown in sorted(rest.keys() - known):
        raise UnknownNameError("setting", unknown, known)
    values = {k: v for k, v in (defaults or {}).items() if k in known} | rest
    tolerance = {k: v for k, v in rest.items() if k in _fields(Tolerance)}
    if tolerance and "tolerance" in _fields(guard):
        values["tolerance"] = replace(_default(guard, "tolerance"), **tolerance)
    return Policy(learner=_made(learner, values), rule=_made(rule, values), guard=_made(guard, values))


def call(make: Callable[..., AnyPolicy], settings: Mapping[str, Any]) -> AnyPolicy:
    """What a function or class makes of the settings that it takes; the others go to the parts of the policy."""
    takes = signature(make).parameters
    if any(p.kind is p.VAR_KEYWORD for p in takes.values()):
        return make(**settings)
    made = make(**{k: v for k, v in settings.items() if k in takes})
    rest = {k: v for k, v in settings.items() if k not in takes}
    if not rest:
        return made
    if not isinstance(made, Policy):
        raise UnknownNameError("setting", min(rest), takes)
    return compose(rest, learner=made.learner, rule=made.rule, guard=made.guard)


def check_policy(policy: AnyPolicy, name: str = "the policy") -> None:
    """Refuse a policy that lacks a part of the contract, or breaks it on a small problem; says which.

    >>> from drimed import make
    >>> check_policy(make("dri_med"))
    """
    _has(policy, AnyPolicy, f"{name} is no policy")
    try:
        _try(policy, name)
    except DrimedError:
        raise
    except Exception as error:  # whatever the code of others raises
        raise ConfigError(f"{name} fails on a small problem: {type(error).__name__}: {error}") from error


def _try(policy: AnyPolicy, name: str) -> None:
    """One user, three arms of which two are available, two rounds."""
    maps = np.array([[[1.0, 0.0, 0.5], [0.0, 1.0, 0.0]], [[0.0, 1.0, 0.5], [1.0, 0.0, 0.0]], [[1.0, 1.0, 0.0]] * 2])
    available = np.array([True, True, False])
    offer = make_offer(
        maps=maps, preference=[0.7, 0.3], covariance=[np.eye(2)] * 3, control=[1.0, 0.0, 0.0], available=available
    )
    offers = replace(offer, **{n: v[None] for n, v in _arrays(offer).items()}, user=np.array([0]))
    state = policy.begin_episode(policy.init(_PROBLEM), offers)
    for round in range(2):
        state = policy.settle(state)
        draws = np.full(policy.draws_needed(_PROBLEM), 0.3 + 0.4 * round)
        decision = policy.decide(state, offer, draws)
        p = decision.probabilities
        if p.shape != (3,) or not np.isfinite(p).all() or (p < 0).any() or abs(p.sum() - 1) > _ROUND_OFF:
            raise ConfigError(f"{name} must give each of the 3 arms a probability, and all of them 1, got {p}")
        if p[2] > 0:
            raise ConfigError(f"{name} gives an arm that is not available the probability {p[2]}")
        outcome = Outcome(np.asarray(0.5), np.array([0.5, 0.5]))
        state = policy.update(state, offer, decision, outcome)
    policy.decide_together(policy.settle(state), offers, draws[None])


def _arrays(offer: Any) -> dict[str, Any]:
    found = {f.name: getattr(offer, f.name) for f in fields(offer)}
    return {n: v for n, v in found.items() if isinstance(v, np.ndarray)}


def _part(kind: str, given: Any, known: Mapping[str, Any], protocol: type) -> Any:
    """The class or instance that is meant; a name, `module:name` or the thing itself."""
    if isinstance(given, str) and given in known:
        return known[given]
    if given is None or isinstance(given, int | float):
        raise TypeError(f"{kind} must be a name, module:name, a class or an instance, got {given!r}")
    what = given
    if isinstance(given, str):
        if not is_place(given):
            raise UnknownNameError(kind, given, known)
        given = load(given)
    else:
        what = getattr(given, "__name__", type(given).__name__)
    _has(given, protocol, f"{what} is no {kind}")
    if not is_dataclass(given):
        raise ConfigError(f"{what} must be a dataclass, @dataclass(frozen=True): its fields are its settings")
    return given


def _has(thing: Any, protocol: type, refusal: str) -> None:
    """Refuse what lacks something that the protocol names."""
    named = {*protocol.__annotations__, *(n for n in vars(protocol) if not n.startswith("_"))}
    lacking = sorted(name for name in named if not hasattr(thing, name))
    if lacking:
        raise ConfigError(f"{refusal}: it lacks {', '.join(lacking)}")


def _made(part: Any, values: Mapping[str, Any]) -> Any:
    own = {k: v for k, v in values.items() if k in _fields(part)}
    return part(**own) if isinstance(part, type) else replace(part, **own) if own else part


def _default(part: Any, name: str) -> Any:
    """What a field is unless it is given."""
    if not isinstance(part, type):
        return getattr(part, name)
    (field,) = (f for f in fields(part) if f.name == name)
    return field.default_factory() if field.default_factory is not MISSING else field.default


def _fields(part: Any) -> set[str]:
    return {f.name for f in fields(part)}
