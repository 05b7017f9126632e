"""Policies on a command line: a name, and settings joined by plus signs.

oful    dri_med:guard=certain+confidence=anytime+feedback=reward    my_rules:Epsilon:epsilon=0.1+guard=my_guards:Mine

Settings begin after the first colon that a `name=` follows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from drimed.errors import ConfigError
from drimed.policies.policy import AnyPolicy
from drimed.policies.registry import REGISTRY, make

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


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
