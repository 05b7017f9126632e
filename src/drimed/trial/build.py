"""From a trial's words to a policy's settings."""

from __future__ import annotations

from dataclasses import fields
from math import sqrt
from typing import Any

from drimed.errors import ConfigError
from drimed.guards.certain import Certain
from drimed.guards.constraint import Guardrail
from drimed.policies.policy import AnyPolicy, Policy
from drimed.policies.registry import make
from drimed.trial.spec import TrialSpec

PRIOR_DEVIATION = 0.5  # of a coefficient, in units of its metric's size


def build_policy(spec: TrialSpec, d: int) -> AnyPolicy:
    """The policy of a trial with d coefficients to learn; settings in [policy] come before what the rest implies."""
    name, settings = spec.policy.name, spec.policy.settings
    plain = make(name, **settings)
    if not isinstance(plain, Policy):
        return _published(spec, plain)
    implied: dict[str, Any] = {}
    learner = plain.learner
    if learner.weighting == "known" and spec.noise.kind == "learned":
        if "weighting" in settings:
            raise ConfigError("weighting 'known' needs the noise: give [noise] kind = \"known\" with sd or covariance")
        implied["weighting"] = "learned"
    if "learned" in (learner.weighting, implied.get("weighting")):
        implied["refits"] = "converged"  # what is decided must not depend on the order in which outcomes came
    if coefficients_are_scaled(spec):
        # Every coefficient is a mean on the scale of its metric's range: of size one at most, two deviations of the
        # prior. A bound on all of them together is what confidence "anytime" needs.
        implied |= {"norm_bound": sqrt(d), "regularisation": (learner.noise_bound / PRIOR_DEVIATION) ** 2}
    guarded = {f.name for f in fields(plain.guard)}  # type: ignore[arg-type]  # every guard is a dataclass
    if "tolerance" in guarded:
        implied |= {"relative": spec.tolerance.relative, "absolute": spec.tolerance.absolute}
    if "confidence" in guarded:
        implied["confidence"] = spec.confidence
    if "guardrails" in guarded:
        implied["guardrails"] = _guardrails(spec)
    elif spec.guardrails:
        raise ConfigError(f'the guard of {name!r} knows no guardrails; use guard = "expected" or "certain"')
    implied["delta"] = spec.delta
    return make(name, **(implied | settings))


def notes(spec: TrialSpec, d: int) -> list[str]:
    """What a person should know before this trial starts."""
    policy = build_policy(spec, d)
    tolerance = getattr(getattr(policy, "guard", None), "tolerance", None)
    said = []
    if not isinstance(policy, Policy) or policy.guard.promise.startswith("violations are discouraged"):
        said.append('this guard only discourages decisions below the control; guard = "certain" excludes them')
    elif tolerance is None:
        said.append(
            f"policy {spec.policy.name!r} does not protect users: nothing keeps its decisions near the control; "
            'dri_med does, or give guard = "expected"'
        )
    elif tolerance.note() is not None and not hasattr(policy.guard, "endowment"):
        said.append(tolerance.note())
    own_effects = next(iter(spec.arms.values())).kind == "own effects"
    if isinstance(policy, Policy) and isinstance(policy.guard, Certain) and own_effects:
        said.append(
            "guard 'certain' with arms that teach nothing about each other: an arm that nobody has had cannot be "
            "certified unless the tolerance covers most of the metrics' range, and the trial may stay on the control; "
            'describe the arms by attributes, or use guard = "expected"'
        )
    if not spec.users:
        said.append("there are no users yet; add them before asking")
    return said


def _published(spec: TrialSpec, plain: AnyPolicy) -> AnyPolicy:
    if spec.noise.kind == "learned":
        raise ConfigError(f"{spec.policy.name!r} needs noise that is known; dri_med learns it")
    if spec.guardrails:
        raise ConfigError(f"{spec.policy.name!r} knows no guardrails; dri_med does")
    if "tolerance" in spec.policy.settings:
        return plain
    return make(spec.policy.name, **({"tolerance": spec.tolerance.relative} | spec.policy.settings))


def coefficients_are_scaled(spec: TrialSpec) -> bool:
    """Whether this trial makes its own maps, so that the size of the coefficients is known."""
    return next(iter(spec.arms.values())).map is None


def _guardrails(spec: TrialSpec) -> tuple[Guardrail, ...]:
    metrics = list(spec.metrics)
    rails = []
    for rail in spec.guardrails:
        metric = spec.metrics[rail.metric]
        rails.append(
            Guardrail(
                metric=metrics.index(rail.metric),
                relative=rail.relative,
                absolute=rail.absolute / metric.size,
                better=metric.better,
            )
        )
    return tuple(rails)
