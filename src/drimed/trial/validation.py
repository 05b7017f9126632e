"""What is wrong with a trial file: fields that do not fit together, users, arms and the policy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from drimed.errors import ConfigError, DrimedError, UnknownNameError
from drimed.evaluation.stopping_rules import NEED_MARGIN, Rule
from drimed.models.linear_regression import Learner
from drimed.numerics import arrays
from drimed.policies.policy import Policy
from drimed.policies.protocol import AnyPolicy
from drimed.policies.registry import find, make
from drimed.policies.rules.base import Floors
from drimed.records import Fault, Path
from drimed.trial.codes import code_faults
from drimed.trial.columns import CODE, PARTS, RESERVED
from drimed.trial.covariates import Covariates
from drimed.trial.names import folded, hidden, tidy
from drimed.trial.policy import build_policy
from drimed.trial.problem import Problem
from drimed.trial.sentences import NAME_RULE, short
from drimed.trial.spec import (
    LARGEST,
    PAPER,
    TOO_LARGE,
    Arm,
    ArmNoise,
    Attribute,
    Cohort,
    ContextField,
    Control,
    Model,
    Name,
    StoppingRule,
    TrialSpec,
    User,
)
from drimed.trial.stopping import groups_of, views

# What is wrong with names that enter a trial: twins, names that clash with columns of sheets, what cannot be seen.

PREFIXES = tuple(f"{part}." for part in PARTS)
_PROSE = ("about", "unit")  # fields that hold no names
_NAME: TypeAdapter[str] = TypeAdapter(Name)


def tidied(data: Any, at: Path = ()) -> tuple[Any, list[Fault]]:
    """Plain data with every name in its one form, and the names that have become equal by that."""
    if isinstance(data, str):
        return tidy(data), []
    if isinstance(data, list | tuple):
        pairs = [tidied(value, (*at, i)) for i, value in enumerate(data)]
        return type(data)(value for value, _ in pairs), [fault for _, faults in pairs for fault in faults]
    if not isinstance(data, Mapping):
        return data, []
    found: dict[Any, Any] = {}
    faults: list[Fault] = []
    for key, value in data.items():
        name = tidy(key) if isinstance(key, str) else key
        if name in found:
            faults.append(Fault((*at, name), f"is the same name as another one here: both are {name!r}"))
        found[name], more = (value, []) if key in _PROSE else tidied(value, (*at, name))
        faults += more
    return found, faults


def tidy_user(definition: User | Mapping[str, Any]) -> Any:
    """The description of somebody who joins, with every name in its one form."""
    return definition if isinstance(definition, User) else tidied(definition)[0]


def first_faults(spec: TrialSpec) -> Iterator[Fault]:
    """What is wrong with the names of a trial that is about to be created, and with its weights."""
    yield from _column_faults(spec)
    for part, names in (("arms", spec.arms), ("users", spec.users), ("cohorts", spec.cohorts)):
        for name in names:
            yield from _seen(name, (part, name))
    for part, declared in (("context", spec.context), ("attributes", spec.attributes)):
        for name, field in declared.items():
            for i, level in enumerate(field.levels or ()):
                yield from _seen(level, (part, name, "levels", i))
    for name, cohort in spec.cohorts.items():
        yield from _seen(cohort.group or "", ("cohorts", name, "group"))
        yield from direction_faults(spec, cohort.preference or {}, ("cohorts", name, "preference"))
    for name, user in spec.users.items():
        yield from user_names(user, ("users", name))
        yield from direction_faults(spec, user.preference or {}, ("users", name, "preference"))
    yield from direction_faults(spec, spec.preference or {}, ("preference",))
    yield from code_faults(spec)


def name_faults(name: str, at: Path) -> Iterator[Fault]:
    """What is wrong with the name of a user, an arm or a plot that is added later."""
    try:
        _NAME.validate_python(name)
    except ValidationError:
        yield Fault(at, f"{NAME_RULE}, got {name!r}")
        return
    yield from _seen(name, at)


def user_names(user: User, at: Path) -> Iterator[Fault]:
    """What is wrong with the names in a user's description."""
    yield from _seen(user.group or "", (*at, "group"))
    for name, value in (user.attributes or {}).items():
        if isinstance(value, str):
            yield from _seen(value, (*at, "attributes", name))
    where = "plots" if user.blocks is None else "blocks"
    for plot, block in user.block_of().items():
        for name in (plot, block or ""):
            yield from _seen(name, (*at, where))


def direction_faults(spec: TrialSpec, preference: Mapping[str, float], at: Path) -> Iterator[Fault]:
    """Weights that reward what the file says is worse: the trial would seek harm."""
    for name, weight in preference.items():
        metric = spec.metrics.get(name)
        if metric is None or "better" not in metric.model_fields_set:
            continue
        if (metric.better == "lower" and weight > 0) or (metric.better == "higher" and weight < 0):
            other = "higher" if metric.better == "lower" else "lower"
            yield Fault(
                (*at, name),
                f"[metrics.{name}] says that {metric.better} is better, and a weight of {weight:g} seeks the opposite: "
                f'write {-weight:g}, or better = "{other}"',
            )


def _column_faults(spec: TrialSpec) -> Iterator[Fault]:
    """Metrics, context fields and attributes are columns of one sheet: each has a name of its own."""
    users = (name for user in spec.users.values() for name in user.attributes or ())
    attributes = dict.fromkeys([*spec.attributes, *users])
    seen: dict[str, tuple[str, str]] = {}
    for part, names in (("metrics", spec.metrics), ("context", spec.context), ("attributes", attributes)):
        for name in names:
            at = _place(spec, part, name)
            yield from _seen(name, at)
            key = folded(name)
            coded = key == CODE and spec.blinding is not None
            if key in RESERVED or key.startswith(PREFIXES) or coded:
                yield Fault(at, f"{name!r} is what sheets call a column of their own: choose another name")
            elif key in seen:
                other = ".".join(seen[key])
                yield Fault(at, f"{name!r} and {other} would be one column of a sheet: choose another name")
            seen.setdefault(key, (part, name))


def _place(spec: TrialSpec, part: str, name: str) -> Path:
    """Where a name is first given."""
    if part != "attributes" or name in spec.attributes:
        return (part, name)
    first = next(user for user, given in spec.users.items() if name in (given.attributes or {}))
    return ("users", first, "attributes", name)


def _seen(name: str, at: Path) -> Iterator[Fault]:
    if (character := hidden(name)) is not None:
        yield Fault(
            at, f"has a character that cannot be seen or acts on others ({character}): write {name!r} without it"
        )


# What is wrong with a trial file's model, attributes, context fields, cohorts and plots.

# What the regression of the paper's model can be told; learners of the field find it out.
_OF_THE_PAPER = {f.name for f in fields(Learner)} - {"delta"}


def model_faults(spec: TrialSpec) -> Iterator[Fault]:
    """What the model of this trial does not know, and covariates that are declared wrongly."""
    if spec.kind == "paper":
        yield from _beyond_the_paper(spec)
    else:
        yield from _of_the_paper(spec)
    for name, attribute in spec.attributes.items():
        yield from _covariate_faults(attribute, ("attributes", name))
    for name, field in spec.context.items():
        yield from _covariate_faults(field, ("context", name))
    covariates = Covariates(spec)
    for name, user in spec.users.items() if spec.kind != "paper" else ():
        yield from covariates.faults(user.attributes or {}, ("users", name, "attributes"))


def place_faults(user: User, at: Path) -> Iterator[Fault]:
    """What is wrong with a user's blocks and plots."""
    if user.blocks is not None and user.plots is not None:
        yield Fault((*at, "plots"), "give blocks with their plots, or plots, not both")
    where = "plots" if user.blocks is None else "blocks"
    named = [("", user.plots)] if user.blocks is None else list(user.blocks.items())
    if (user.plots is not None or user.blocks is not None) and not all(plots for _, plots in named):
        yield Fault((*at, where), "must name at least one plot, in each block")
    seen: set[str] = set()
    for block, plots in named:
        for plot in plots or ():
            if plot in seen:
                path = (*at, where, block) if block else (*at, where)
                yield Fault(path, f"plot {plot!r} comes twice: each plot of a user needs a name of its own, such as A1")
            seen.add(plot)


def _of_the_paper(spec: TrialSpec) -> Iterator[Fault]:
    """What only the paper's model knows."""
    model = spec.model
    if spec.noise.kind == "known":
        yield Fault(("noise", "kind"), f"this model learns the noise; for noise that is known {PAPER}")
    for name, arm in spec.arms.items():
        if arm.map is not None:
            yield Fault(("arms", name, "map"), f"this model has no maps: describe the arms by attributes, or {PAPER}")
    for setting in spec.policy.settings:
        if setting == "discount":
            yield Fault(("policy", setting), "belongs to the model: give it under [model]")
        elif setting in _OF_THE_PAPER:
            yield Fault(("policy", setting), f"this model finds it out by itself: leave it out, or {PAPER}")
    if model.balanced and spec.has_exact_rule:
        yield Fault(
            ("model", "balanced"),
            "an exact stopping rule needs decisions that are drawn one by one: leave it out, or use "
            'evidence = "propensities"',
        )


def _beyond_the_paper(spec: TrialSpec) -> Iterator[Fault]:
    """What the paper's model, one mean for each arm, has no place for."""
    model, usual = spec.model, Model()
    other = 'the paper\'s model has no place for it: leave it out, or write kind = "field" or "people"'
    for name in ("seasons", "noise", "discount", "balanced"):
        if getattr(model, name) != getattr(usual, name):
            hint = "give it under [policy]" if name == "discount" else other
            yield Fault(("model", name), hint)
    for name in spec.attributes:
        yield Fault(("attributes", name), other)
    for name, user in spec.users.items():
        if user.attributes:
            yield Fault(("users", name, "attributes"), other)
    for name, field in spec.context.items():
        if field.levels is not None:
            yield Fault(("context", name, "levels"), other)
        if field.affects is not None and field.affects != ["noise"]:
            yield Fault(("context", name, "affects"), f'must be ["noise"] in the paper\'s model, got {field.affects}')


def _covariate_faults(declared: Attribute | ContextField, at: Path) -> Iterator[Fault]:
    if declared.levels is not None:
        for name in ("typical", "spread"):
            if name in declared.model_fields_set:
                yield Fault((*at, name), "belongs to a number; a category has levels only")
        if isinstance(declared, ContextField) and not declared.levels:
            yield Fault((*at, "levels"), "must not be empty: a context has one of these levels")
        if _twice(declared.levels):
            yield Fault((*at, "levels"), "must differ from each other")
        if declared.affects is not None and "noise" in declared.affects:
            yield Fault((*at, "affects"), "a category affects the level and the effects, not the noise")
    if declared.affects is not None and _twice(declared.affects):
        yield Fault((*at, "affects"), "must name each at most once")


def _twice(names: Iterable[str]) -> bool:
    names = list(names)
    return len(set(names)) < len(names)


# What is wrong with the stopping rules of a trial file, or with those that replace them.


def stopping_faults(spec: TrialSpec, users: Mapping[str, User], *, sound: bool = True) -> Iterator[Fault]:
    """What does not fit a trial with these users; `sound`: the rest of it has no faults."""
    stopping, until = spec.stopping, None if spec.floors is None else spec.floors.until
    rules = {} if stopping is None else stopping.rules
    if until is not None and until not in rules:
        yield Fault(("floors", "until"), str(UnknownNameError("stopping rule", until, rules)))
    for name, rule in rules.items():
        for fault in _rule_faults(spec, users, rule, ("stopping", "rules", name)):
            sound = False
            yield fault
    for name, view in views(spec, users).items() if sound else ():
        if not view.arms:
            yield Fault(("stopping", "rules", name), "there is no arm but the control to ask about")


def _rule_faults(spec: TrialSpec, users: Mapping[str, User], rule: StoppingRule, at: Path) -> Iterator[Fault]:
    for field, name, known in (
        ("arm", rule.arm, spec.arms),
        ("metric", rule.metric, spec.metrics),
        ("user", rule.user, users),
        ("group", rule.group, groups_of(spec, users)),
    ):
        if name is not None and name not in known:
            yield Fault((*at, field), str(UnknownNameError(field, name, known)))
    given = [field for field in ("group", "user", "each") if getattr(rule, field) is not None]
    if len(given) > 1:
        yield Fault((*at, given[1]), f"give one of group, user and each; {' and '.join(given)} contradict each other")
    if rule.kind in NEED_MARGIN and not rule.margin:
        yield Fault((*at, "margin"), f"{rule.kind} needs a margin above zero: the smallest effect that matters")
    else:
        try:
            Rule(kind=rule.kind, margin=rule.margin)
        except ConfigError as error:
            yield Fault((*at, "margin"), str(error))
    if (
        rule.arm is not None
        and spec.control == rule.arm
        and all(spec.resolved(u).control == rule.arm for u in users.values())
    ):
        yield Fault((*at, "arm"), f"{rule.arm!r} is the control itself: it has no effect against itself")
    yield from _each_faults(spec, users, rule, at)
    yield from _evidence_faults(spec, rule, at)
    if rule.evidence == "model" and rule.then != "advise" and spec.blames_arms:
        yield Fault(
            (*at, "evidence"),
            f'a rule that ends in "{rule.then}" by the model needs a model with seasons, and [model] says seasons = '
            "false: such a model takes a shift from season to season for an effect of arms, and the rule is met "
            f"wrongly; leave `seasons = false` out of [model], use "
            'evidence = "propensities" or then = "advise", or give [stopping] seasons = 1 if there is one season',
        )


def _each_faults(spec: TrialSpec, users: Mapping[str, User], rule: StoppingRule, at: Path) -> Iterator[Fault]:
    """A rule divides alpha among those that are there when it is fixed."""
    if rule.each == "group" and not groups_of(spec, users):
        yield Fault((*at, "each"), "no user and no cohort has a group: give them groups, or leave `each` out")
    if rule.each == "user" and spec.enrols:
        yield Fault(
            (*at, "each"),
            "with open enrolment nobody knows how many users there will be, and alpha cannot be divided among them: "
            'write each = "group", or leave `each` out',
        )
    elif rule.each == "user" and not users:
        yield Fault((*at, "each"), "there are no users in the file to divide alpha among: name them first")


def _evidence_faults(spec: TrialSpec, rule: StoppingRule, at: Path) -> Iterator[Fault]:
    if rule.evidence == "model" and spec.kind == "paper":
        yield Fault(
            (*at, "evidence"),
            'the paper\'s model has no ranges of a level of their own: write [model] kind = "field", or '
            'evidence = "propensities"',
        )
    policy = make(spec.policy.name)
    if rule.evidence == "exact":
        for metric in spec.metrics if rule.metric is None else [rule.metric]:
            if metric in spec.metrics and spec.metrics[metric].range is None:
                yield Fault(
                    (*at, "evidence"),
                    f"exact ranges need the range of {metric!r}, outside of which no outcome can be; give it one, or "
                    'evidence = "propensities"',
                )
    if rule.evidence != "model" and isinstance(policy, Policy) and policy.rule.randomisation == "sampled":
        yield Fault(
            (*at, "evidence"),
            f"the policy {spec.policy.name!r} only samples, and its propensities are not known: take another policy, "
            'such as dri_med, or evidence = "model"',
        )


MOST_COEFFICIENTS = 2000  # to learn in one trial: matrices have the square of it


def cross_faults(spec: TrialSpec) -> list[Fault]:
    """Everything that only shows when fields are read together."""
    faults = [*_metric_faults(spec), *_arm_faults(spec), *_control_faults(spec), *_noise_faults(spec)]
    for name, cohort in spec.cohorts.items():
        faults += _default_faults(spec, cohort, spec.control, ("cohorts", name))
    for name, user in spec.users.items():
        faults += user_faults(spec, user, ("users", name))
    faults += [*model_faults(spec), *_setting_faults(spec)]
    sound = not faults
    if sound:
        faults += _policy_faults(spec)
    if sound or not any(f.path[:1] == ("policy",) for f in faults):
        faults += [*floor_faults(spec, len(spec.arms)), *stopping_faults(spec, spec.users, sound=sound)]
    return faults


def user_faults(spec: TrialSpec, user: User, at: Path) -> Iterator[Fault]:
    """What is wrong with one user, in the file or added later."""
    if user.cohort is not None and user.cohort not in spec.cohorts:
        # Whatever else may be missing may be what the cohort has.
        yield Fault((*at, "cohort"), str(UnknownNameError("cohort", user.cohort, spec.cohorts)))
        yield from _default_faults(spec, user, user.control, at)
        yield from place_faults(user, at)
        return
    known = spec.resolved(user)
    if known.preference is None:
        yield Fault(at, "needs a preference (weights of metrics), here or as `preference` for all users")
    if known.control is None:
        yield Fault(at, "needs a control (an arm, or shares of arms), here or as `control` for all users")
    yield from _default_faults(spec, user, known.control, at)
    if user.arms is None and known.arms is not None and user.control is not None:
        for arm in _support(user.control):
            if arm not in known.arms:
                yield Fault((*at, "control"), f"must be among the arms of its cohort; {arm!r} is not")
    yield from place_faults(user, at)


def _default_faults(spec: TrialSpec, given: Cohort, control: Control | None, at: Path) -> Iterator[Fault]:
    """What is wrong with the preference, the control and the arms of a user or a cohort."""
    if given.preference is not None:
        yield from preference_faults(spec, given.preference, (*at, "preference"))
    if given.control is not None:
        yield from _one_control(spec, given.control, (*at, "control"))
    unknown = [(i, arm) for i, arm in enumerate(given.arms or ()) if arm not in spec.arms]
    for i, arm in unknown:
        yield Fault((*at, "arms", i), str(UnknownNameError("arm", arm, spec.arms)))
    control = given.control if given.control is not None else control
    if given.arms is not None and not unknown and control is not None:
        missing = [a for a in _support(control) if a in spec.arms and a not in given.arms]
        if missing:
            yield Fault((*at, "arms"), f"must hold the user's control; {missing[0]!r} is not among them")


def preference_faults(spec: TrialSpec, preference: dict[str, float], at: Path) -> Iterator[Fault]:
    """What is wrong with weights of metrics."""
    for metric in preference:
        if metric not in spec.metrics:
            yield Fault((*at, metric), str(UnknownNameError("metric", metric, spec.metrics)))
    if not any(preference.values()):
        yield Fault(at, "must give at least one metric a weight other than zero")


def arm_faults(spec: TrialSpec, name: str, arm: Arm) -> Iterator[Fault]:
    """What is wrong with one arm, in the file or added later."""
    at: Path = ("arms", name)
    first_name, first = next(iter(spec.arms.items()))
    if arm.attributes is not None and arm.map is not None:
        yield Fault(at, "give attributes or a map, not both")
    elif arm.kind != first.kind:
        yield Fault(at, f"all arms must be described in one way; {first_name!r} has {first.kind}, this one {arm.kind}")
    elif arm.attributes is not None and first.attributes is not None and set(arm.attributes) != set(first.attributes):
        expected, came = ", ".join(first.attributes), ", ".join(arm.attributes) or "none"
        yield Fault((*at, "attributes"), f"must be the same for all arms: expected {expected}, got {came}")
    elif arm.attributes is not None and not arm.attributes:
        yield Fault((*at, "attributes"), "must name at least one attribute")
    elif arm.map is not None and first.map is not None:
        M = len(spec.metrics)
        widths = {len(row) for row in arm.map}
        if len(arm.map) != M or len(widths) != 1 or 0 in widths:
            came = " and ".join(map(str, sorted(widths)))
            yield Fault(
                (*at, "map"), f"must have {M} rows, one for each metric, of one length; got {len(arm.map)} of {came}"
            )
        elif first.map and len(arm.map[0]) != len(first.map[0]):
            yield Fault((*at, "map"), f"must have {len(first.map[0])} columns as {first_name!r}, got {len(arm.map[0])}")


def _metric_faults(spec: TrialSpec) -> Iterator[Fault]:
    if spec.preference is not None:
        yield from preference_faults(spec, spec.preference, ("preference",))
    for i, rail in enumerate(spec.guardrails):
        at: Path = ("guardrails", i)
        if rail.metric not in spec.metrics:
            yield Fault((*at, "metric"), str(UnknownNameError("metric", rail.metric, spec.metrics)))
        if _cancels(spec) and not rail.absolute:
            yield Fault(at, "with feedback 'difference' the control's level cancels: give `absolute`, not `relative`")


def floor_faults(spec: TrialSpec, arms: int) -> Iterator[Fault]:
    """What is wrong with the floors of a trial with so many arms."""
    if spec.floors is None:
        return
    try:
        Floors(**spec.floors.heights()).check(arms)
    except ConfigError as error:
        yield Fault(("floors",), str(error))
    if not isinstance(make(spec.policy.name), Policy):
        yield Fault(("floors",), f"the policy {spec.policy.name!r} knows no floors: take another, such as dri_med")


def _arm_faults(spec: TrialSpec) -> Iterator[Fault]:
    for name, arm in spec.arms.items():
        yield from arm_faults(spec, name, arm)


def _control_faults(spec: TrialSpec) -> Iterator[Fault]:
    if spec.control is not None:
        yield from _one_control(spec, spec.control, ("control",))
    if _cancels(spec) and not spec.tolerance.absolute and "tolerance" in spec.model_fields_set:
        yield Fault(
            ("tolerance",),
            "with feedback 'difference' the control's level cancels, and a relative tolerance allows nothing: give "
            "`absolute`, in the unit of the reward",
        )


def _one_control(spec: TrialSpec, control: Control, at: Path) -> Iterator[Fault]:
    arms = _support(control)
    for arm in arms:
        if arm not in spec.arms:
            path = at if isinstance(control, str) else (*at, arm)
            yield Fault(path, str(UnknownNameError("arm", arm, spec.arms)))
    if isinstance(control, dict):
        total = sum(control.values())
        if abs(total - 1) > arrays.SUM_TOLERANCE:
            yield Fault(at, f"shares must sum to 1, got {total:g}")
        if spec.feedback == "difference" and len(arms) > 1:
            yield Fault(at, "with feedback 'difference' a site's control plot has one arm; give one arm as control")


def _cancels(spec: TrialSpec) -> bool:
    """Whether the control's level is lost: only differences are learned from."""
    return spec.feedback == "difference" and spec.kind == "paper"


def _support(control: Control) -> list[str]:
    return [control] if isinstance(control, str) else [arm for arm, share in control.items() if share > 0]


def _noise_faults(spec: TrialSpec) -> Iterator[Fault]:
    noise = spec.noise
    if noise.scale not in ("constant", "norm", *spec.context):
        known = ("constant", "norm", *spec.context)
        yield Fault(("noise", "scale"), str(UnknownNameError("scale", noise.scale, known)))
    if noise.kind == "learned":
        for field in sorted(noise.model_fields_set - {"kind"}):
            yield Fault(("noise", field), 'belongs to noise that is known; set kind = "known", or leave it out')
        return
    yield from _spread_faults(spec, noise, ("noise",), required=set(noise.arms) != set(spec.arms))
    for name, own in noise.arms.items():
        if name not in spec.arms:
            yield Fault(("noise", "arms", name), str(UnknownNameError("arm", name, spec.arms)))
        yield from _spread_faults(spec, own, ("noise", "arms", name), required=True)


def _spread_faults(spec: TrialSpec, noise: ArmNoise, at: Path, *, required: bool) -> Iterator[Fault]:
    if noise.sd is not None and noise.covariance is not None:
        yield Fault(at, "give sd or covariance, not both")
    elif noise.sd is not None:
        for metric in sorted(noise.sd.keys() ^ spec.metrics.keys()):
            wrong = f"is missing metric {metric!r}" if metric in spec.metrics else None
            yield Fault((*at, "sd"), wrong or str(UnknownNameError("metric", metric, spec.metrics)))
    elif noise.covariance is not None:
        M = len(spec.metrics)
        if [len(row) for row in noise.covariance] != [M] * M:
            came = f"{len(noise.covariance)} rows of {', '.join(map(str, sorted({len(r) for r in noise.covariance})))}"
            yield Fault(
                (*at, "covariance"), f"must have {M} rows of {M}, in the order of the metrics, got {came or 'none'}"
            )
            return
        try:
            matrix = np.array([noise.covariance])
            arrays.noisy("covariance", arrays.covariance("covariance", matrix))
        except DrimedError as error:
            yield Fault((*at, "covariance"), f"is no covariance matrix: {_plainly(error)}")
    elif required:
        yield Fault(at, "noise that is known needs sd (one for each metric) or covariance")


def _plainly(error: DrimedError) -> str:
    text = str(error).split(": arm")[0].removeprefix("covariance ")
    if "semi-definite" in text:
        text += " (variances must not be negative, nor correlations beyond -1 or 1)"
    return text


def _setting_faults(spec: TrialSpec) -> Iterator[Fault]:
    """What is wrong with the policy's name and settings, whatever the rest of the file says."""
    name, settings = spec.policy.name, spec.policy.settings
    try:
        find(name)
    except DrimedError as error:
        yield Fault(("policy", "name"), str(error))
        return
    own = make(name).traits.settings
    sound = {}
    for setting, value in settings.items():
        at: Path = ("policy", setting)
        if setting in ("tolerance", "guardrails") and (setting not in own or "relative" in own):
            home = "[tolerance]" if setting == "tolerance" else "[[guardrails]]"
            yield Fault(at, f"belongs to the trial and not to its policy: give it under {home}")
        elif not isinstance(value, str | int | float) or (isinstance(value, float) and not abs(value) < np.inf):
            yield Fault(at, f"must be a finite number, a text, true or false, got {short(value)}")
        elif not isinstance(value, str) and abs(value) > LARGEST:
            yield Fault(at, f"{TOO_LARGE}, got {short(value)}")
        elif _is_of_the_wrong_kind(name, setting, value):
            kind = "a number" if isinstance(value, str) else "a text"
            yield Fault(at, f"must be {kind}, got {short(value)}")
        else:
            sound[setting] = value
    try:
        make(name, **sound)
    except UnknownNameError as error:
        yield Fault(("policy", error.name if error.kind == "setting" else error.kind), str(error))
    except DrimedError as error:
        yield Fault(("policy",), str(error))


def _is_of_the_wrong_kind(policy: str, setting: str, value: object) -> bool:
    try:
        make(policy, **{setting: value})
    except ConfigError as error:
        return isinstance(error.__cause__, TypeError)  # a text where numbers are compared, or the like
    except DrimedError:
        pass
    return False


def _policy_faults(spec: TrialSpec) -> Iterator[Fault]:
    """Whether the policy fits the trial: asked only once both are sound on their own."""
    d = _coefficients(spec)
    if d > MOST_COEFFICIENTS:
        yield Fault(
            ("arms",),
            f"a trial learns at most {MOST_COEFFICIENTS} coefficients, these arms and metrics need {d}: describe the "
            "arms by fewer attributes or narrower maps, or have fewer of them",
        )
        return
    try:
        policy = build_policy(spec, Problem(spec).shape.d)
    except DrimedError as error:
        yield Fault(("policy",), str(error))
        return
    first: Control | None = None
    for name, user in spec.users.items():
        control = spec.resolved(user).control
        first = control if first is None else first
        yield from plot_faults(spec, policy, control, first, ("users", name, "control"))


def _coefficients(spec: TrialSpec) -> int:
    """d, before anything is made that has the size of it."""
    M, first = len(spec.metrics), next(iter(spec.arms.values()))
    if spec.kind != "paper":
        return M * len(spec.arms)
    if first.map is not None:
        return len(first.map[0])
    return M * (1 + len(spec.arms if first.attributes is None else first.attributes))


def plot_faults(
    spec: TrialSpec, policy: AnyPolicy, control: Control | None, first: Control | None, at: Path
) -> Iterator[Fault]:
    """Whether a user's control may differ from the first one's."""
    traits = policy.traits
    if not _cancels(spec) or (traits.weighting, traits.feedback) != ("learned", "vector"):
        return
    if control is not None and first is not None and _support(control) != _support(first):
        yield Fault(
            at,
            f"with feedback 'difference' and noise that is learned, all users must have one control, {first!r}, got "
            f'{control!r}; or give the noise, or learn from the reward alone: [policy] feedback = "reward"',
        )
