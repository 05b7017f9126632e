"""Designs that are rehearsed beside the trial's own, in the same worlds: other guards, tolerances, and no learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from drimed.policies.policy import Policy
from drimed.policies.registry import make
from drimed.trial.spec import Floors, PolicyPart, TrialSpec

POLICY, UNIFORM, CONTROL, FIXED = "policy", "uniform", "control", "fixed"
FLOORS = (0.1, 0.3)  # of the control, where the file has none
OWN = "this trial"  # the name of the file's own design


@dataclass(frozen=True)
class Design:
    """How arms are chosen; a trial's file with another tolerance is another design."""

    name: str
    spec: TrialSpec
    allocation: str = POLICY

    @property
    def learns(self) -> bool:
        """Whether its decisions depend on outcomes."""
        return self.allocation == POLICY


def own(spec: TrialSpec) -> Design:
    """As the file says."""
    return Design(OWN, spec)


def without_learning(spec: TrialSpec) -> list[Design]:
    """Designs whose decisions do not depend on outcomes."""
    return [
        Design("uniform allocation", spec, UNIFORM),
        Design("fixed randomised design", spec, FIXED),
        Design("always the control", spec, CONTROL),
    ]


def variants(spec: TrialSpec) -> list[Design]:
    """The same policy with half and twice the tolerance, and with other guards."""
    found = [
        Design("half the tolerance", tolerating(spec, 0.5)),
        Design("twice the tolerance", tolerating(spec, 2.0)),
    ]
    if spec.floors is None:
        found += [Design(f"a floor of {100 * f:.0f} % for the control", with_floor(spec, f)) for f in FLOORS]
    now = spec.policy.settings.get("guard", "expected")
    settings = _settings(spec)
    for guard, name in (("certain", "guard on every arm"), ("off", "no guard")):
        if "guard" in settings and guard != now and not (guard == "off" and spec.guardrails):
            found.append(Design(name, with_policy(spec, guard=guard)))
    return found


def tolerating(spec: TrialSpec, times: float) -> TrialSpec:
    """With so many times the tolerance."""
    t = spec.tolerance
    wider = t.model_copy(update={"relative": min(times * t.relative, 0.99), "absolute": times * t.absolute})
    return spec.model_copy(update={"tolerance": wider})


def with_floor(spec: TrialSpec, control: float) -> TrialSpec:
    """With another floor of the control."""
    floors = (spec.floors or Floors()).model_copy(update={"control": control})
    return spec.model_copy(update={"floors": floors})


def with_policy(spec: TrialSpec, **settings: Any) -> TrialSpec:
    """With other settings of the policy."""
    policy = PolicyPart(name=spec.policy.name, **spec.policy.settings | settings)
    return spec.model_copy(update={"policy": policy})


def _settings(spec: TrialSpec) -> frozenset[str]:
    made = make(spec.policy.name, **spec.policy.settings)
    return made.traits.settings if isinstance(made, Policy) else frozenset()
