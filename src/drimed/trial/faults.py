"""What is wrong with a trial file: fields that do not fit together, users, arms and the policy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from drimed.errors import ConfigError, DrimedError, UnknownNameError
from drimed.linear import checks
from drimed.policies.contract import AnyPolicy
from drimed.policies.policy import Policy
from drimed.policies.registry import find, make
from drimed.records import Fault, Path
from drimed.rules.floors import Floors
from drimed.trial.build import build_policy
from drimed.trial.model_faults import model_faults, place_faults
from drimed.trial.parts import LARGEST, TOO_LARGE, Arm, ArmNoise, Cohort, Control, User
from drimed.trial.problem import Problem
from drimed.trial.sentences import short
from drimed.trial.spec import TrialSpec
from drimed.trial.stopping_faults import stopping_faults

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
        if abs(total - 1) > checks.SUM_TOLERANCE:
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
            checks.noisy("covariance", checks.covariance("covariance", matrix))
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
