"""Policies on a command line: a name, and settings joined by plus signs.

oful    dri_med:guard=certain+confidence=anytime+feedback=reward
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from drimed.errors import ConfigError
from drimed.policies.policy import AnyPolicy, Policy
from drimed.policies.registry import GUARDS, make


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
        name, _, rest = text.strip().partition(":")
        settings: dict[str, Any] = {}
        for pair in filter(None, rest.split("+")):
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
        tolerance = getattr(getattr(self.build(), "guard", None), "tolerance", None)
        if tolerance is None or self.settings.get("guard") in ("penalty", "budget"):
            return None
        note: str | None = tolerance.note()
        return note

    def parts(self) -> dict[str, str]:
        """Learner, rule and guard in a few words: where a gain comes from."""
        policy = self.build()
        if not isinstance(policy, Policy):
            step = "Dri-MED" if policy.step == "med" else "Dri-IMED"  # type: ignore[attr-defined]  # a PublishedDri
            reading = policy.reading  # type: ignore[attr-defined]
            return {"learner": f"published ({reading})", "rule": step, "guard": "published"}
        learner = policy.learner
        aged = f", discount {learner.discount:g}" if learner.discount < 1 else ""
        guard = next(name for name, kind in GUARDS.items() if isinstance(policy.guard, kind))  # type: ignore[arg-type]
        level = getattr(policy.guard, "confidence", 0.99)
        dial = "" if level == 0.99 else f" at {level}"
        return {
            "learner": f"{learner.feedback}, {learner.weighting} noise{aged}",
            "rule": type(policy.rule).__name__,
            "guard": guard + dial,
        }


def parse_list(text: str) -> list[PolicySpec]:
    """Several, separated by commas."""
    specs = [PolicySpec.parse(part) for part in text.split(",") if part.strip()]
    if not specs:
        raise ConfigError("give at least one policy; `drimed policies` lists them")
    return specs


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
