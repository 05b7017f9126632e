"""Faults of a trial file, and of users, arms and rules that are added later: each with its path, all at once.

Pydantic checks each field alone; its findings become sentences here. Then names, and fields that do not fit together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import fields, replace
from typing import Annotated, Any, get_args, get_origin

import numpy as np
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from drimed.errors import ConfigError, DrimedError, UnknownNameError
from drimed.evaluation.stopping_rules import Rule
from drimed.models.linear_regression import Learner
from drimed.numerics import arrays
from drimed.policies.guards.base import Off
from drimed.policies.guards.certified import Certain, Expected
from drimed.policies.policy import Policy
from drimed.policies.protocol import AnyPolicy
from drimed.policies.registry import make
from drimed.policies.rules.base import Floors
from drimed.records import Fault, Path
from drimed.trial import spec as trial_file
from drimed.trial.look_history import groups_of, rule_scopes
from drimed.trial.problem import Covariates, Problem, build_policy
from drimed.trial.spec import LARGEST, Arm, Attribute, ContextField, Metric, TrialSpec, User, folded, short, tidy

FEWEST_DOSES = 3  # a bend needs a third
MOST_LOOKS = 200  # that are planned
MOST_COEFFICIENTS = 2000  # to learn in one trial: matrices have the square of it
NAME_RULE = (
    "must be a name: 1 to 100 characters, no quotes, slashes, commas or semicolons, and in front no space and none of "
    "= + - @, which spreadsheets take for a formula"
)
_TRIAL_NAME_RULE = "must be 1 to 100 letters, digits, dots, dashes and underscores, the first a letter or digit"
_SENTENCES = {  # of pydantic's findings
    "missing": "is missing",
    "string_type": "must be text in quotes",
    "string_unicode": "must be text of whole characters, without lone surrogates",
    "float_type": "must be a number",
    "int_type": "must be a whole number",
    "finite_number": "must be a finite number",
    "greater_than": "must be above {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be below {lt:g}",
    "less_than_equal": "must be at most {le:g}",
    "literal_error": "must be {expected}",
    "dict_type": "must be a table of names and values",
    "model_type": "must be a table of fields",
    "list_type": "must be a list in brackets, or a table under double brackets for each of them",
    "tuple_type": "must be a list of two numbers",
    "union_tag_not_found": "must be the name of an arm, or a table of arms and their shares",
}
_NAME: TypeAdapter[str] = TypeAdapter(trial_file.Name)
_PAPER_SETTINGS = {f.name for f in fields(Learner)} - {"delta"}  # mixed models find these out, but for the discount


def spec_faults(spec: TrialSpec) -> list[Fault]:
    """All faults of a new trial whose fields are sound each by itself."""
    return [*_column_faults(spec), *_code_faults(spec), *cross_faults(spec)]


def cross_faults(spec: TrialSpec) -> list[Fault]:
    """Faults of fields that do not fit together."""
    faults = [*_trial_faults(spec), *_noise_faults(spec)]
    for name, arm in spec.arms.items():
        faults += arm_faults(spec, name, arm)
    for name, cohort in spec.cohorts.items():
        faults += _default_faults(spec, cohort, spec.resolved(User(cohort=name)), ("cohorts", name))
    for name, user in spec.users.items():
        faults += user_faults(spec, user, ("users", name))
    faults += [*_dose_faults(spec), *_model_faults(spec), *_setting_faults(spec)]
    sound = not faults
    if sound:
        faults += _policy_faults(spec)
    if sound or not any(f.path[:1] == ("policy",) for f in faults):
        faults += [*floor_faults(spec, len(spec.arms)), *stopping_faults(spec, spec.users, sound=sound)]
    return faults


# Sections of which a field may be unreadable, each with the sections that rest on its fields.
_RESTING: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("name", "about", "seed", "goal", "tolerance", "confidence", "delta", "floors", "blinding"), ()),
    **dict.fromkeys(("stopping", "guardrails", "users", "history"), ()),
    "metrics": ("guardrails", "stopping", "floors", "model", "noise"),
    "context": ("attributes", "users", "cohorts", "model"),
    "attributes": ("context", "users", "cohorts", "model"),
}


def rest_faults(data: Any, faults: Iterable[Fault]) -> list[Fault]:
    """Faults of a file that hold whatever these fields, which cannot be read, should be."""
    data, silent = deepcopy(data), {"policy"}  # the policy is checked against a whole trial only
    for fault in faults:
        section, field = (str(fault.path[0]), fault.path[-1]) if fault.path else ("", "")
        table = data
        for step in fault.path[:-1]:
            table = table.get(step) if isinstance(table, dict) else None
        # A field such as metrics.yield.range can be left out; a whole metric cannot.
        needed = section not in _RESTING or (_RESTING[section] and len(fault.path) < 3)
        if needed or not isinstance(table, dict) or field not in table:
            return []
        del table[field]
        silent |= {section, *_RESTING[section]}
    try:
        spec = TrialSpec.model_validate(data)
    except ValidationError:
        return []
    return [fault for fault in spec_faults(spec) if fault.path and fault.path[0] not in silent]


# Pydantic's findings


def pydantic_faults(error: ValidationError, kind: type[BaseModel] = TrialSpec) -> list[Fault]:
    """Pydantic's findings about a trial, or another part of it, as sentences."""
    return [_sentence(detail, kind) for detail in error.errors(include_url=False)]


def _sentence(detail: ErrorDetails, kind: type[BaseModel]) -> Fault:
    loc = detail["loc"][:-1] if detail["loc"][-1:] == ("[key]",) else detail["loc"]
    path = tuple(tidy(p) if isinstance(p, str) else p for p in loc if p not in (trial_file.ARM, trial_file.SHARES))
    what, context = detail["type"], detail.get("ctx", {})
    if what == "extra_forbidden":
        return Fault(path, str(UnknownNameError("field", str(path[-1]), _fields_at(kind, path[:-1]))))
    if what in ("string_pattern_mismatch", "string_too_short", "string_too_long"):
        text = _TRIAL_NAME_RULE if path == ("name",) else NAME_RULE
    elif what in ("too_short", "too_long"):
        text = "must have two numbers, the lowest and the highest" if path[-1] == "range" else "must not be empty"
    elif what == "value_error":
        text = detail["msg"].removeprefix("Value error, ")
    elif what == "float_type" and isinstance(detail["input"], int) and not isinstance(detail["input"], bool):
        text = trial_file.TOO_LARGE
    else:
        text = _SENTENCES.get(what, detail["msg"][:1].lower() + detail["msg"][1:]).format(**context)
    return Fault(path, text if what == "missing" or ", got " in text else f"{text}, got {short(detail['input'])}")


def _fields_at(kind: Any, path: Path) -> Iterable[str]:
    """The fields that the part of the file at `path` may have."""
    for step in path:
        kind = kind.model_fields[step].annotation if hasattr(kind, "model_fields") else get_args(kind)[-1]
        if type(None) in get_args(kind):
            kind = get_args(kind)[0]
        if get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
    return [field.alias or name for name, field in getattr(kind, "model_fields", {}).items()]


# Names


def name_faults(name: str, at: Path) -> Iterator[Fault]:
    """Faults of the name of a user, an arm or a plot that is added later."""
    try:
        _NAME.validate_python(name)
    except ValidationError as error:
        yield from (replace(_sentence(detail, TrialSpec), path=at) for detail in error.errors(include_url=False))


def _column_faults(spec: TrialSpec) -> Iterator[Fault]:
    """Metrics, context fields and attributes are columns of one sheet: each needs a name of its own."""
    parts = ("metrics", "context", "attributes")
    places: dict[tuple[str, str], Path] = {(part, name): (part, name) for part in parts for name in getattr(spec, part)}
    for user, definition in spec.users.items():
        for name in definition.attributes or ():
            places.setdefault(("attributes", name), ("users", user, "attributes", name))
    columns: dict[str, str] = {}
    own = (*trial_file.OWN_COLUMNS, *trial_file.NOTE_COLUMNS, *(() if spec.blinding is None else (trial_file.CODE,)))
    for (part, name), at in places.items():
        key = folded(name)
        if key in own or key.startswith(tuple(f"{p}." for p in trial_file.COLUMN_PARTS)):
            yield Fault(at, f"{name!r} is what sheets call a column of their own: choose another name")
        elif key in columns:
            yield Fault(at, f"{name!r} and {columns[key]} would be one column of a sheet: choose another name")
        columns.setdefault(key, f"{part}.{name}")


def _code_faults(spec: TrialSpec) -> Iterator[Fault]:
    at = ("blinding", "codes")
    codes = spec.blinding.codes if spec.blinding is not None and isinstance(spec.blinding.codes, dict) else {}
    if codes and (left := [arm for arm in spec.arms if arm not in codes]):
        yield Fault(at, f"gives no code to {', '.join(left)}: give every arm one, or leave all out to have them drawn")
    taken = {folded(arm): f"the name of arm {arm!r}" for arm in spec.arms}
    for arm, code in codes.items():
        yield from _unknown("arm", arm, spec.arms, (*at, arm))
        if folded(code) in taken:
            yield Fault((*at, arm), f"{code!r} is {taken[folded(code)]} too: choose another code")
        taken.setdefault(folded(code), f"the code of {arm!r}")


def _unknown(kind: str, name: str, known: Iterable[str], at: Path) -> Iterator[Fault]:
    if name not in known:
        yield Fault(at, str(UnknownNameError(kind, name, known)))


# Users, arms, preferences and controls


def user_faults(spec: TrialSpec, user: User, at: Path) -> Iterator[Fault]:
    """Faults of one user, in the file or added later."""
    resolved = spec.resolved(user)
    if user.cohort is not None and user.cohort not in spec.cohorts:  # it may have what is missing
        yield from _unknown("cohort", user.cohort, spec.cohorts, (*at, "cohort"))
    else:
        if resolved.preference is None:
            yield Fault(at, "needs a preference (weights of metrics), here or as `preference` for all users")
        if resolved.control is None:
            yield Fault(at, "needs a control (an arm, or shares of arms), here or as `control` for all users")
    yield from _default_faults(spec, user, resolved, at)
    if spec.holdout is not None and isinstance(resolved.control, dict):
        yield Fault((*at, "control"), "must be one arm where there is a [holdout], whose users get nothing else")
    if user.blocks is not None and user.plots is not None:
        yield Fault((*at, "plots"), "give blocks with their plots, or plots, not both")


def preference_faults(spec: TrialSpec, preference: Mapping[str, float], at: Path) -> Iterator[Fault]:
    """Faults of weights of metrics: with one that rewards the worse direction the trial would seek harm."""
    for name, weight in preference.items():
        metric = spec.metrics.get(name)
        if metric is None:
            yield from _unknown("metric", name, spec.metrics, (*at, name))
        elif "better" in metric.model_fields_set and (weight < 0 if metric.better == "higher" else weight > 0):
            other = "higher" if metric.better == "lower" else "lower"
            text = f"[metrics.{name}] says {metric.better} is better, and a weight of {weight:g} seeks the opposite"
            yield Fault((*at, name), f'{text}: write {-weight:g}, or better = "{other}"')
    if not any(preference.values()):
        yield Fault(at, "must give at least one metric a weight other than zero")


def arm_faults(spec: TrialSpec, name: str, arm: Arm) -> Iterator[Fault]:
    """Faults of one arm, in the file or added later."""
    at: Path = ("arms", name)
    first_name, first = next(iter(spec.arms.items()))
    if arm.attributes is not None and arm.map is not None:
        yield Fault(at, "give attributes or a map, not both")
    elif arm.kind != first.kind:
        yield Fault(at, f"all arms must be described in one way; {first_name!r} has {first.kind}, this one {arm.kind}")
    elif arm.attributes is not None and first.attributes is not None and set(arm.attributes) != set(first.attributes):
        expected, got = ", ".join(first.attributes), ", ".join(arm.attributes) or "none"
        yield Fault((*at, "attributes"), f"must be the same for all arms: expected {expected}, got {got}")
    elif arm.map is not None and first.map is not None:
        M, widths = len(spec.metrics), {len(row) for row in arm.map}
        if len(arm.map) != M or len(widths) != 1 or 0 in widths:
            got = f"{len(arm.map)} of {' and '.join(map(str, sorted(widths)))}"
            yield Fault((*at, "map"), f"must have {M} rows, one for each metric, of one length; got {got}")
        elif first.map and len(arm.map[0]) != len(first.map[0]):
            yield Fault((*at, "map"), f"must have {len(first.map[0])} columns as {first_name!r}, got {len(arm.map[0])}")


def _dose_faults(spec: TrialSpec) -> Iterator[Fault]:
    for name, dose in spec.doses.items():
        values = {(arm.attributes or {}).get(name) for arm in spec.arms.values()}
        at: Path = ("doses", name)
        if dose.step is not None:
            yield Fault((*at, "step"), "makes arms, and there are others: leave them out, or from, to and step")
        elif values == {None}:
            yield Fault(at, f"no arm has it: give each arm attributes = {{ {name} = 60 }}, or give from, to and step")
        elif len(values) < FEWEST_DOSES:
            text = f"needs {FEWEST_DOSES} different doses, got {len(values)}"
            yield Fault(at, f"{text}: leave it out, and the response is a straight line")


def _default_faults(spec: TrialSpec, own: trial_file.Cohort, resolved: trial_file.Cohort, at: Path) -> Iterator[Fault]:
    """Faults of the preference, the control and the arms of a user or a cohort."""
    if own.preference is not None:
        yield from preference_faults(spec, own.preference, (*at, "preference"))
    yield from _control_faults(spec, own.control, (*at, "control"))
    for i, arm in enumerate(own.arms or ()):
        yield from _unknown("arm", arm, spec.arms, (*at, "arms", i))
    for i, metric in enumerate(own.metrics or ()):
        yield from _unknown("metric", metric, spec.metrics, (*at, "metrics", i))
    if own.metrics is not None and (spec.kind == "paper" or spec.feedback == "difference"):
        yield Fault(
            (*at, "metrics"), "this trial learns from whole outcomes only: leave it out, so that all are measured"
        )
    arms, has_own = resolved.arms, own.arms is not None or own.control is not None
    if has_own and arms is not None and spec.arms.keys() >= set(arms):
        for arm in [arm for arm in _support(resolved.control) if arm in spec.arms and arm not in arms][:1]:
            field = "control" if own.arms is None else "arms"
            yield Fault((*at, field), f"the control must be among the arms of the user or cohort; {arm!r} is not")


def control_plot_faults(spec: TrialSpec, policy: AnyPolicy, user: User, at: Path) -> Iterator[Fault]:
    """A control of its own, where the noise of differences to the trial's control is learned."""
    control, learns = spec.resolved(user).control, (policy.traits.weighting, policy.traits.feedback)
    if spec.cancels and learns == ("learned", "vector") and control not in (None, spec.control):
        text = f"all users must have one control, that of the trial, {spec.control!r}, got {control!r}"
        fix = 'the noise of differences to it is learned; give the noise, or [policy] feedback = "reward"'
        yield Fault((*at, "control"), f"{text}: {fix}")


def _control_faults(spec: TrialSpec, control: trial_file.Control | None, at: Path) -> Iterator[Fault]:
    arms = _support(control)
    for arm in arms:
        yield from _unknown("arm", arm, spec.arms, at if isinstance(control, str) else (*at, arm))
    if isinstance(control, dict) and abs(sum(control.values()) - 1) > arrays.SUM_TOLERANCE:
        yield Fault(at, f"shares must sum to 1, got {sum(control.values()):g}")
    if spec.feedback == "difference" and len(arms) > 1:
        yield Fault(at, "with feedback 'difference' a site's control plot has one arm; give one arm as control")


def _trial_faults(spec: TrialSpec) -> Iterator[Fault]:
    """Faults of the preference, the control, the tolerance and the guardrails of all users."""
    if spec.preference is not None:
        yield from preference_faults(spec, spec.preference, ("preference",))
    yield from _control_faults(spec, spec.control, ("control",))
    for i, rail in enumerate(spec.guardrails):
        yield from _unknown("metric", rail.metric, spec.metrics, ("guardrails", i, "metric"))
    given: list[tuple[Path, Any]] = [(("guardrails", i), rail) for i, rail in enumerate(spec.guardrails)]
    given += [(("tolerance",), spec.tolerance)] if "tolerance" in spec.model_fields_set else []
    for at, tolerance in given if spec.cancels else ():
        if not tolerance.absolute:
            yield Fault(at, "with differences alone the control's level cancels: give `absolute`, not `relative`")


def _support(control: trial_file.Control | None) -> list[str]:
    return [control] if isinstance(control, str) else [arm for arm, share in (control or {}).items() if share > 0]


# Noise, model and policy


def _noise_faults(spec: TrialSpec) -> Iterator[Fault]:
    noise = spec.noise
    yield from _unknown("scale", noise.scale, ("constant", "norm", *spec.context), ("noise", "scale"))
    if noise.kind == "learned":
        for field in sorted(noise.model_fields_set - {"kind"}):
            yield Fault(("noise", field), 'belongs to noise that is known; set kind = "known", or leave it out')
        return
    yield from _covariance_faults(spec, noise, ("noise",), required=set(noise.arms) != set(spec.arms))
    for name, own in noise.arms.items():
        yield from _unknown("arm", name, spec.arms, ("noise", "arms", name))
        yield from _covariance_faults(spec, own, ("noise", "arms", name), required=True)


def _covariance_faults(spec: TrialSpec, noise: trial_file.ArmNoise, at: Path, *, required: bool) -> Iterator[Fault]:
    if noise.sd is not None and noise.covariance is not None:
        yield Fault(at, "give sd or covariance, not both")
    elif noise.sd is not None and noise.sd.keys() != spec.metrics.keys():
        expected, got = ", ".join(spec.metrics), ", ".join(noise.sd)
        yield Fault((*at, "sd"), f"must have one for each metric: expected {expected}, got {got}")
    elif noise.covariance is not None:
        M, widths = len(spec.metrics), [len(row) for row in noise.covariance]
        if widths != [M] * M:
            got = f"{len(widths)} rows of {', '.join(map(str, sorted(set(widths)))) or 'nothing'}"
            yield Fault((*at, "covariance"), f"must have {M} rows of {M}, in the order of the metrics, got {got}")
            return
        try:
            arrays.covariance("covariance", np.array([noise.covariance]))
        except DrimedError as error:
            text = str(error).split(": arm")[0].removeprefix("covariance ")
            yield Fault((*at, "covariance"), f"is no covariance matrix: {text}")
    elif required and noise.sd is None:
        yield Fault(at, "noise that is known needs sd (one for each metric) or covariance")


def _kind_faults(spec: TrialSpec, metric: Metric, at: Path) -> Iterator[Fault]:
    """A metric that is not a plain number, and what does not fit it."""
    kind, given = metric.kind, metric.model_fields_set
    if kind == "number":
        if metric.detection is not None and (spec.kind == "paper" or spec.feedback == "difference"):
            text = "values below a limit of detection are left out, and this trial learns from whole outcomes only"
            yield Fault((*at, "detection"), f'{text}: leave it out, or write [model] kind = "people" or "field"')
        if metric.of is not None:
            yield Fault((*at, "of"), 'only kind = "yes/no" (7 of 20) and kind = "count" (12 in 3.5) have it')
        return
    if spec.kind == "paper":
        text = f"the paper's model has numbers only, got {kind!r}"
        yield Fault((*at, "kind"), f'{text}; write [model] kind = "people" or "field"')
    if spec.feedback == "difference":
        yield Fault((*at, "kind"), f"{kind!r} cannot be a difference between two plots; leave out feedback")
    if spec.confidence == "anytime":
        yield Fault((*at, "kind"), f"{kind!r} needs a confidence of each decision, such as 0.99, and not 'anytime'")
    if spec.model.discount < 1:
        text = f"{kind!r} outcomes of all seasons count alike, and a discount would be ignored"
        yield Fault((*at, "kind"), f"{text}; leave out discount under [model]")
    if metric.detection is not None:
        yield Fault((*at, "detection"), f"a metric that is {kind!r} has no limit of detection; leave it out")
    if metric.spread is not None:
        yield Fault((*at, "spread"), f"a metric that is {kind!r} scatters as its mean says; leave it out")
    if kind == "score" and metric.range is None:
        yield Fault((*at, "range"), "a score needs its lowest and its highest value, such as range = [0, 10]")
    if kind == "score" and metric.of is not None:
        yield Fault((*at, "of"), "a score is not counted out of anything; leave it out")
    low, high = metric.ends or (0.0, LARGEST)
    if metric.typical is not None and not low <= metric.typical <= high:
        yield Fault((*at, "typical"), f"must lie between {low:g} and {high:g}, got {metric.typical:g}")
    if kind == "yes/no" and "range" in given:
        yield Fault((*at, "range"), "yes or no needs no range; leave it out")


def _model_faults(spec: TrialSpec) -> Iterator[Fault]:
    """Fields that the other kind of model has; kinds and spreads of metrics; and covariates."""
    for name, metric in spec.metrics.items():
        yield from _kind_faults(spec, metric, ("metrics", name))
        if metric.range is None or metric.spread is None:
            continue
        low, high = metric.range
        if not 2 * metric.spread <= high - low <= trial_file.WRONG_UNIT * metric.spread:
            text = f"outcomes between {low:g} and {high:g} cannot have a spread of {metric.spread:g}"
            fix = f"it is at most half of that width, and not below 1/{trial_file.WRONG_UNIT:g} of it"
            yield Fault(("metrics", name, "spread"), f"{text}: {fix}; give both in the unit of the metric")
    if spec.kind == "paper":
        paths: list[Path] = [("model", name) for name in spec.model.model_dump(exclude={"kind"}, exclude_defaults=True)]
        paths += [("tolerance", "for")] if spec.tolerance.promise is not None else []
        paths += [("metrics", name, "spread") for name, metric in spec.metrics.items() if metric.spread is not None]
        paths += [("history",)] if spec.history is not None else []
        paths += [(part, name) for part in ("attributes", "doses") for name in getattr(spec, part)]
        paths += [("users", name, "attributes") for name, user in spec.users.items() if user.attributes]
        paths += [("context", name, "levels") for name, field in spec.context.items() if field.levels is not None]
        affects = [(name, field.affects) for name, field in spec.context.items()]
        paths += [("context", name, "affects") for name, roles in affects if roles not in (None, ["noise"])]
        other = 'the paper\'s model has no place for it: leave it out, or write kind = "field" or "people"'
        for path in paths:
            yield Fault(path, "give it under [policy]" if path[-1] == "discount" else other)
        return
    if spec.noise.kind == "known":
        yield Fault(("noise", "kind"), f"this model learns the noise; for noise that is known {trial_file.PAPER}")
    for name, arm in spec.arms.items():
        if arm.map is not None:
            yield Fault(
                ("arms", name, "map"), f"this model has no maps: describe the arms by attributes, or {trial_file.PAPER}"
            )
    for setting in spec.policy.settings.keys() & _PAPER_SETTINGS:
        own = "belongs to the model: give it under [model]"
        other = f"this model finds it out by itself: leave it out, or {trial_file.PAPER}"
        yield Fault(("policy", setting), own if setting == "discount" else other)
    if spec.model.balanced and spec.has_exact_rule:
        text = "an exact stopping rule needs decisions that are drawn one by one"
        yield Fault(("model", "balanced"), f'{text}: leave it out, or use evidence = "propensities"')
    declared: dict[Path, Attribute | ContextField] = {("attributes", name): a for name, a in spec.attributes.items()}
    declared |= {("context", name): field for name, field in spec.context.items()}
    for at, covariate in declared.items():
        if covariate.levels is not None:
            for field in sorted({"typical", "spread"} & covariate.model_fields_set):
                yield Fault((*at, field), "belongs to a number; a category has levels only")
            if "noise" in (covariate.affects or ()):
                yield Fault((*at, "affects"), "a category affects the level and the effects, not the noise")
    covariates = Covariates(spec)
    for name, user in spec.users.items():
        yield from covariates.faults(user.attributes or {}, ("users", name, "attributes"))


def floor_faults(spec: TrialSpec, arms: int) -> Iterator[Fault]:
    """Faults of the floors of a trial with so many arms."""
    if spec.floors is None:
        return
    try:
        Floors(**spec.floors.heights()).check(arms)
    except ConfigError as error:
        yield Fault(("floors",), str(error))
    if not isinstance(make(spec.policy.name), Policy):
        yield Fault(("floors",), f"the policy {spec.policy.name!r} knows no floors: take another, such as dri_med")


def _setting_faults(spec: TrialSpec) -> Iterator[Fault]:
    """Faults of the policy's name and settings by themselves."""
    name, sound = spec.policy.name, {}
    try:
        own = make(name).traits.settings
    except DrimedError as error:
        yield Fault(("policy", "name"), str(error))
        return
    for setting, value in spec.policy.settings.items():
        at: Path = ("policy", setting)
        if setting in ("tolerance", "guardrails") and (setting not in own or "relative" in own):
            yield Fault(at, f"belongs to the trial and not to its policy: give it under [{setting}]")
        elif not isinstance(value, str) and not (isinstance(value, int | float) and abs(value) <= LARGEST):
            yield Fault(at, f"must be a number of at most {LARGEST:g}, a text, true or false, got {short(value)}")
        else:
            try:
                make(name, **{setting: value})
            except DrimedError as error:  # any other fault is found with all settings together
                if isinstance(error.__cause__, TypeError):  # a text where numbers are compared, or the like
                    kind = "a number" if isinstance(value, str) else "a text"
                    yield Fault(at, f"must be {kind}, got {short(value)}")
                    continue
            sound[setting] = value
    try:
        make(name, **sound)
    except UnknownNameError as error:
        yield Fault(("policy", error.name if error.kind == "setting" else error.kind), str(error))
    except DrimedError as error:
        yield _setting_fault(spec, error)


def _setting_fault(spec: TrialSpec, error: DrimedError) -> Fault:
    """A policy that cannot be made, at the setting that its message names: "discount must be in (0, 1], got 1.5"."""
    name, _, rest = str(error).partition(" ")
    of_setting = name in spec.policy.settings and rest.startswith("must be ")
    return Fault(("policy", name), rest) if of_setting else Fault(("policy",), str(error))


def _policy_faults(spec: TrialSpec) -> Iterator[Fault]:
    """Faults of a policy that does not fit the trial, once both are sound on their own."""
    problem = Problem(spec)
    if (d := problem.shape.d) > MOST_COEFFICIENTS:
        text = f"a trial learns at most {MOST_COEFFICIENTS} coefficients, these arms and metrics need {d}"
        yield Fault(("arms",), f"{text}: have fewer of them, fewer attributes or narrower maps")
        return
    try:
        policy = build_policy(problem)
    except DrimedError as error:
        yield _setting_fault(spec, error)
        return
    guard = policy.guard if spec.has_kinds and isinstance(policy, Policy) else Off()
    simultaneous = getattr(guard, "simultaneous", False)
    if simultaneous or not isinstance(guard, Off | Expected | Certain):
        text = "would take yes or no, counts and scores for normal outcomes"
        fix = 'leave it out, or take guard = "expected" or "certain"'
        yield Fault(("policy", "simultaneous" if simultaneous else "guard"), f"{text}; {fix}")
    for name, user in spec.users.items():
        yield from control_plot_faults(spec, policy, user, ("users", name))


# Stopping rules


def stopping_faults(spec: TrialSpec, users: Mapping[str, User], *, sound: bool = True) -> Iterator[Fault]:
    """Faults of the stopping rules of a trial with these users; `sound`: the rest of it has no faults."""
    until = None if spec.floors is None else spec.floors.until
    if until is not None:
        yield from _unknown("stopping rule", until, spec.rules, ("floors", "until"))
    for name, rule in spec.rules.items():
        for fault in _rule_faults(spec, users, rule, ("stopping", "rules", name)):
            sound = False
            yield fault
    for name, scope in rule_scopes(spec, users).items() if sound else ():
        if not scope.arms:
            yield Fault(("stopping", "rules", name), "there is no arm but the control to ask about")


def _rule_faults(
    spec: TrialSpec, users: Mapping[str, User], rule: trial_file.StoppingRule, at: Path
) -> Iterator[Fault]:
    groups = groups_of(spec, users)
    for field, known in (("arm", spec.arms), ("metric", spec.metrics), ("user", users), ("group", groups)):
        if (name := getattr(rule, field)) is not None:
            yield from _unknown(field, name, known, (*at, field))
    fields = [field for field in ("group", "user", "each") if getattr(rule, field) is not None]
    if len(fields) > 1:
        yield Fault((*at, fields[1]), f"give one of group, user and each; {' and '.join(fields)} contradict each other")
    try:
        Rule(kind=rule.kind, margin=rule.margin)
    except ConfigError as error:
        yield Fault((*at, "margin"), str(error))
    controls = [spec.control, *(spec.resolved(user).control for user in users.values())]
    if rule.arm is not None and all(control == rule.arm for control in controls):
        yield Fault((*at, "arm"), f"{rule.arm!r} is the control itself: it has no effect against itself")
    if rule.each == "group" and not groups:
        yield Fault((*at, "each"), "no user and no cohort has a group: give them groups, or leave `each` out")
    if rule.each == "user" and spec.enrols:
        text = "with open enrolment the number of users is not known, and alpha cannot be divided among them"
        yield Fault((*at, "each"), f'{text}: write each = "group", or leave `each` out')
    elif rule.each == "user" and not users:
        yield Fault((*at, "each"), "there are no users in the file to divide alpha among: name them first")
    if rule.then == "drop" and (fields or rule.kind not in ("futility", "harm")):
        text = 'an arm is dropped for all users, by a rule of kind "futility" or "harm"'
        yield Fault((*at, "then"), f"{text}: leave out group, user and each, or choose another consequence")
    if rule.shape is not None and not rule.is_planned:
        yield Fault((*at, "shape"), 'is of evidence = "calibrated" or "spending", which have a bound at each look')
    at, policy = (*at, "evidence"), make(spec.policy.name)
    if rule.is_planned:
        yield from _plan_faults(spec, rule, at)
    if rule.on_model:
        if spec.kind == "paper":
            yield Fault(at, 'the paper\'s model has no such ranges: write kind = "field", or evidence = "propensities"')
        if rule.then != "advise" and rule.evidence != "calibrated" and spec.confounds_seasons_with_arms:
            yield Fault(
                at,
                f'{trial_file.SEASONLESS}; or write then = "advise", or [stopping] seasons = 1 if there is one season',
            )
    elif isinstance(policy, Policy) and policy.rule.randomisation == "sampled":
        text = f"the policy {spec.policy.name!r} only samples, and its propensities are not known"
        yield Fault(at, f'{text}: take another, such as dri_med, or evidence = "model"')
    for metric in (spec.metrics if rule.metric is None else [rule.metric]) if rule.evidence == "exact" else ():
        if metric in spec.metrics and spec.metrics[metric].ends is None:
            text = f"exact ranges need the range of {metric!r}, outside of which no outcome can be"
            yield Fault(at, f'{text}; give it one, or evidence = "propensities"')


def _plan_faults(spec: TrialSpec, rule: trial_file.StoppingRule, at: Path) -> Iterator[Fault]:
    """Faults of the number and the spacing of looks, for a rule that may be met at planned ones only."""
    stopping = spec.stopping or trial_file.Stopping()
    planned, looks, first = stopping.planned(), stopping.looks, stopping.first or 1
    limit = "seasons" if looks == "season" else "decisions"
    if not planned:
        text = "its looks are planned: give their spacing (`looks`) and the limit of the trial"
        yield Fault(at, f'{text}, `seasons` where looks = "season", `decisions` where it is a number')
    elif len(planned) > MOST_LOOKS or first > planned[-1]:
        yield Fault(at, f"expected 1 to {MOST_LOOKS} planned looks up to {planned[-1]} {limit}, got {len(planned)}")
    elif rule.evidence == "calibrated" and isinstance(looks, int):
        if not spec.enrols:
            yield Fault(at, 'in a rehearsal all users are decided for at once: write looks = "season"')
        elif any(count % looks for count in planned):
            yield Fault(at, f"to be rehearsed, `first` and `decisions` must be multiples of looks = {looks}")
