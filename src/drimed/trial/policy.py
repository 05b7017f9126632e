"""The policy of a trial, from its file."""

from __future__ import annotations

from math import inf, sqrt
from typing import Any

from drimed.errors import ConfigError
from drimed.formatting import listed
from drimed.models.linear_regression import Learner
from drimed.models.mixed.learner import Field
from drimed.policies.guards.base import Guardrail
from drimed.policies.policy import Policy
from drimed.policies.protocol import AnyPolicy, Traits
from drimed.policies.registry import make
from drimed.policies.rules.base import RemembersRounds
from drimed.trial.covariates import Covariates
from drimed.trial.spec import PAPER, TrialSpec

PRIOR_DEVIATION = 0.5  # of a coefficient, in units of its metric's size


def build_policy(spec: TrialSpec, d: int) -> AnyPolicy:
    """The policy of a trial with d coefficients to learn; settings in [policy] come before what the rest implies."""
    return _paper_policy(spec, d) if spec.kind == "paper" else _mixed_policy(spec)


def _mixed_policy(spec: TrialSpec) -> AnyPolicy:
    """A policy with random effects of sites, seasons, blocks and people."""
    name, settings, model = spec.policy.name, spec.policy.settings, spec.model
    plain = make(name, **settings)
    if not isinstance(plain, Policy) or not isinstance(plain.learner, Learner | Field):
        raise ConfigError(f"{name!r} comes with a model of its own: {PAPER}")
    if isinstance(plain.rule, RemembersRounds):
        raise ConfigError(f"the rule of {name!r} keeps sums on features, which only the paper's model has: {PAPER}")
    numbers, categories = Covariates(spec).counted
    learner = {
        "learner": spec.kind,
        "covariates": tuple(c.roles for c in numbers),
        "categories": tuple(c.roles for c in categories),
        "attributes": len(next(iter(spec.arms.values())).attributes or ()),
        "noise": model.noise,
        "discount": model.discount,
        "seasons": model.seasons,
        "ranges": tuple((-inf, inf) if m.range is None else tuple(map(float, m.range)) for m in spec.metrics.values()),
        "delta": spec.delta,
    }
    if model.balanced is not None:
        learner["balanced"] = model.balanced
    elif spec.has_exact_rule:
        learner["balanced"] = False  # exact ranges need decisions whose draws are independent
    return make(name, **(learner | _implied_settings(spec, plain.traits) | settings))


def _implied_settings(spec: TrialSpec, plain: Traits) -> dict[str, Any]:
    """Settings of the rule and the guard that follow from the rest of the file."""
    implied: dict[str, Any] = {"relative": spec.tolerance.relative, "absolute": spec.tolerance.absolute}
    # Arms with equal evidence share their probability. A promise holds for the arm that was chosen: the paper's model
    # needs a bound on all arms at once for that; a mixed model's estimates are shrunk towards each other, so that
    # choosing among them needs none (docs/safety.md).
    implied |= {"confidence": spec.confidence, "ties": "shared", "simultaneous": spec.kind == "paper"}
    if "guardrails" in plain.settings:
        implied["guardrails"] = tuple(
            Guardrail(
                metric=list(spec.metrics).index(rail.metric),
                relative=rail.relative,
                absolute=rail.absolute / spec.size(rail.metric),
                better=spec.metrics[rail.metric].better,
            )
            for rail in spec.guardrails
        )
    elif spec.guardrails:
        raise ConfigError(
            f'the guard of {spec.policy.name!r} has no guardrails; use guard = "expected" or "certain", or dri_med'
        )
    return {name: value for name, value in implied.items() if name in plain.settings}


def _paper_policy(spec: TrialSpec, d: int) -> AnyPolicy:
    """A policy of the paper's model: one mean for each arm."""
    name, settings = spec.policy.name, spec.policy.settings
    made = make(name, **settings)
    if isinstance(made, Policy) and isinstance(made.learner, Field):
        raise ConfigError(f'{name!r} learns with the field model: write [model] kind = "{made.learner.kind}"')
    plain = made.traits
    implied: dict[str, Any] = {}
    weighting = plain.weighting
    if weighting == "known" and spec.noise.kind == "learned":
        if "weighting" not in plain.settings:
            raise ConfigError(f"{name!r} needs noise that is known; dri_med learns it")
        if "weighting" in settings:
            raise ConfigError("weighting 'known' needs the noise: give [noise] kind = \"known\" with sd or covariance")
        implied["weighting"] = weighting = "learned"
    implied |= _implied_settings(spec, plain)
    if weighting == "learned":
        implied["refits"] = "converged"  # decisions must not depend on the order in which outcomes came
    if "regularisation" not in plain.settings:  # a published algorithm: its constants are its own
        return make(name, **({"tolerance": spec.tolerance.relative} | settings))
    if coefficients_are_scaled(spec):
        # Every coefficient is a mean on the scale of its metric's range: of size one at most, two deviations of the
        # prior. Confidence "anytime" needs a bound on all of them together.
        implied |= {"norm_bound": sqrt(d), "regularisation": (plain.noise_bound / PRIOR_DEVIATION) ** 2}
    implied["delta"] = spec.delta
    return make(name, **({k: v for k, v in implied.items() if k in plain.settings} | settings))


def coefficients_are_scaled(spec: TrialSpec) -> bool:
    """True if this trial makes its own maps, so that the size of the coefficients is known."""
    return spec.kind == "paper" and next(iter(spec.arms.values())).map is None


def notes(spec: TrialSpec, d: int, users: int = 0, *, policy: AnyPolicy | None = None) -> list[str]:
    """Notes for a person before this trial starts, or with so many users now."""
    traits, texts = (policy or build_policy(spec, d)).traits, []
    if traits.protects == "discourages":
        texts.append('this guard only discourages decisions below the control; guard = "certain" excludes them')
    elif traits.protects == "nothing":
        texts.append(
            f"policy {spec.policy.name!r} does not protect users: its decisions may fall below the control; dri_med "
            'protects them, or give guard = "expected"'
        )
    elif traits.tolerance is not None and traits.protects != "sum" and (note := traits.tolerance.note()) is not None:
        texts.append(note)
    if traits.protects == "every arm" and next(iter(spec.arms.values())).kind == "own effects":
        texts.append(
            "guard 'certain' with arms that teach nothing about each other: an arm that was never given cannot be "
            "certified unless the tolerance covers most of the metrics' range, and the trial may stay on the control; "
            'describe the arms by attributes, or use guard = "expected"'
        )
    has_floor = spec.floors is not None and spec.floors.control > 0
    if spec.kind == "field" and traits.tolerance is not None and not has_floor and not users:  # fixed once it has begun
        texts.append("the control has no minimum probability; set `[floors] control = 0.05`")
    if not spec.users and not users and not spec.enrols:
        texts.append("there are no users yet; add them before asking")
    on_model = [name for name, rule in spec.rules.items() if rule.evidence == "model"]
    if on_model and spec.confounds_seasons_with_arms:
        texts.append(
            f"{listed(on_model)}: a model without seasons takes a level that rises or falls for an effect of the arms "
            "that are given more and more; leave `seasons = false` out of [model], or use "
            'evidence = "propensities"'
        )
    if spec.blinding is not None and spec.seed is not None:
        texts.append("codes and arms can be computed from the seed: leave `seed` out of the file of a blinded trial")
    for name, declared in spec.attributes.items():
        scaled = declared.levels is not None or (declared.typical is not None and declared.spread is not None)
        if not scaled and not any(name in (user.attributes or {}) for user in spec.users.values()):
            texts.append(
                f"attribute {name!r} has no typical value or spread, and no user in the file to take them from: its "
                "values are used as they are; declare both, or its levels if it is a category"
            )
    return texts
