"""Policies from text and from parts: settings go to whichever part knows them.

On a command line a policy is a name, and settings joined by plus signs, which begin after the first colon that a
`name=` follows:

oful    dri_med:guard=certain+confidence=anytime+feedback=reward    my_rules:Epsilon:epsilon=0.1+guard=my_guards:Mine
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from inspect import signature
from typing import Any

from drimed.errors import ConfigError, UnknownNameError
from drimed.models.linear_regression import AnyLearner, Learner
from drimed.policies.guards.base import Guard
from drimed.policies.guards.margin import Tolerance
from drimed.policies.policy import Policy, settings_of
from drimed.policies.protocol import AnyPolicy, check_has
from drimed.policies.registry import GUARDS, LEARNERS, REGISTRY, RULES, is_place, load, make
from drimed.policies.rules.base import Rule

_FORM = re.compile(r"(?P<name>[^=+]*?)(?::(?P<settings>\s*\w+\s*=.*))?")


@dataclass(frozen=True)
class PolicySpec:
    """A policy as it was written."""

    text: str
    name: str
    settings: dict[str, Any]

    @staticmethod
    def parse(text: str) -> PolicySpec:
        """Read and check; a wrong name or setting is refused with the nearest right one.

        >>> PolicySpec.parse("dri_med:guard=certain+absolute=0.1").settings
        {'guard': 'certain', 'absolute': 0.1}
        """
        form = _FORM.fullmatch(text.strip())
        name = form["name"].strip() if form else ""
        first, _, after = name.partition(":")
        if form is None or (after and first in REGISTRY):
            raise ConfigError(f"settings must look like name=value, joined by +, got {text!r}")
        settings: dict[str, Any] = {}
        for pair in filter(None, (form["settings"] or "").split("+")):
            key, separator, value = pair.partition("=")
            if not separator or not key or not value:
                raise ConfigError(f"a setting must look like name=value, got {pair!r} in {text!r}")
            settings[key.strip()] = _value(value.strip())
        spec = PolicySpec(text.strip(), name, settings)
        spec.build()
        return spec

    def build(self) -> AnyPolicy:
        """The policy."""
        return make(self.name, **self.settings)

    def note(self) -> str | None:
        """What its guard would have a person know before it starts."""
        traits = self.build().traits
        if traits.tolerance is None or traits.confidence is None or "endowment" in traits.settings:
            return None
        return traits.tolerance.note()

    def parts(self) -> dict[str, str]:
        """Learner, rule and guard in a few words: where a gain comes from."""
        traits = self.build().traits
        return {"learner": traits.learner, "rule": traits.rule, "guard": traits.guard}


def parse_list(text: str) -> list[PolicySpec]:
    """Several, separated by commas."""
    specs = [PolicySpec.parse(part) for part in text.split(",") if part.strip()]
    if not specs:
        raise ConfigError("give at least one policy; `drimed policies` lists them")
    return specs


def compose(
    settings: Mapping[str, Any],
    *,
    rule: Any,
    guard: Any,
    learner: Any = Learner,
    defaults: Mapping[str, Any] | None = None,
) -> Policy:
    """A policy of these parts, classes or instances; the settings `learner`, `rule` and `guard` replace one.

    A setting that two parts know, such as delta, means the same to both. A default that no part knows is left out: it
    belonged to a part that was replaced.
    """
    rest = dict(settings)
    if (named := rest.pop("learner", None)) is not None:
        learner = _part("learner", named, LEARNERS, AnyLearner)
    rule = _part("rule", rest.pop("rule", rule), RULES, Rule)
    guard = _part("guard", rest.pop("guard", guard), GUARDS, Guard)
    known = settings_of(learner, rule, guard)
    for unknown in sorted(rest.keys() - known):
        raise UnknownNameError("setting", unknown, known)
    values = {k: v for k, v in (defaults or {}).items() if k in known} | rest
    made = _made(guard, values)
    tolerance = {k: v for k, v in rest.items() if k in _fields(Tolerance)}
    if tolerance and "tolerance" in _fields(guard):
        made = replace(made, tolerance=replace(made.tolerance, **tolerance))
    return Policy(learner=_made(learner, values), rule=_made(rule, values), guard=made)


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


def _part(kind: str, given: Any, known: Mapping[str, str], protocol: type) -> Any:
    """The class or instance that is meant; a name, `module:name` or the thing itself."""
    if isinstance(given, str) and given in known:
        return load(known[given])
    if given is None or isinstance(given, int | float):
        raise TypeError(f"{kind} must be a name, module:name, a class or an instance, got {given!r}")
    what = given
    if isinstance(given, str):
        if not is_place(given):
            raise UnknownNameError(kind, given, known)
        given = load(given)
    else:
        what = getattr(given, "__name__", type(given).__name__)
    check_has(given, protocol, f"{what} is no {kind}")
    if not is_dataclass(given):
        raise ConfigError(f"{what} must be a dataclass, @dataclass(frozen=True): its fields are its settings")
    return given


def _made(part: Any, values: Mapping[str, Any]) -> Any:
    own = {k: v for k, v in values.items() if k in _fields(part)}
    return part(**own) if isinstance(part, type) else replace(part, **own) if own else part


def _fields(part: Any) -> set[str]:
    return {f.name for f in fields(part)}


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
