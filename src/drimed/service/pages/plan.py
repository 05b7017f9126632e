"""What a trial is: what is measured, what can be done, for whom, and what is promised, as it stands now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from starlette.responses import Response

from drimed.findings.effects import better
from drimed.policies.policy import Policy
from drimed.policies.registry import GUARDS, REGISTRY
from drimed.service.pages.route import Pages, Visit, whole
from drimed.service.tokens import READ
from drimed.trial.memory import Memory
from drimed.trial.records import Status
from drimed.trial.spec import Arm, ArmNoise, Guardrail, User
from drimed.trial.trial import Trial

PAGE = 100  # users

routes = Pages()


@dataclass(frozen=True)
class MetricRow:
    """Something that is measured."""

    name: str
    unit: str
    better: str
    range: str


@dataclass(frozen=True)
class ArmRow:
    """Something that can be done."""

    name: str
    about: str
    effects: str  # how they are described
    state: str


@dataclass(frozen=True)
class UserRow:
    """Somebody that decisions are made for."""

    name: str
    group: str
    reward: str
    control: str
    arms: str


@dataclass(frozen=True)
class FieldRow:
    """Something that is known before a decision."""

    name: str
    unit: str
    typical: str
    spread: str


@dataclass(frozen=True)
class Plan:
    """A trial in words. The seed is no part of it: with it, one could tell which arm comes next."""

    status: Status
    metrics: list[MetricRow]
    arms: list[ArmRow]
    users: list[UserRow]
    page: int
    pages: int
    reward: str | None  # None: every user has weights of its own
    control: str | None
    safety: list[str]
    policy: tuple[str, str]
    settings: dict[str, str]
    learning: list[str]
    context: list[FieldRow]


@routes.page("/trials/{trial}/plan", READ)
async def plan(visit: Visit) -> Response:
    """The whole of it, for those who did not write it."""
    page = whole(visit.query("users"), 6) or 0
    found = await visit.service.read(visit.trial, lambda trial: _plan(trial, page))
    return visit.page("plan.html", s=found.status, tab="plan", plan=found, size=PAGE)


def reward(weights: Mapping[str, float]) -> str:
    """Weights as the sum that they make.

    >>> reward({"yield": 200, "leaching": -3, "water": -1.5, "colour": 0, "taste": 1})
    '200 × yield − 3 × leaching − 1.5 × water + taste'
    """
    said = ""
    for metric, weight in weights.items():
        if not weight:
            continue
        sign = ("−" if weight < 0 else "") if not said else " − " if weight < 0 else " + "
        said += sign + (metric if abs(weight) == 1 else f"{number(abs(weight))} × {metric}")
    return said or "0"


def control(shares: str | Mapping[str, float]) -> str:
    """A control in words.

    >>> control({"practice": 0.7, "split": 0.3, "none": 0})
    '70 % practice, 30 % split'
    """
    if isinstance(shares, str):
        return shares
    return ", ".join(f"{number(100 * share)} % {arm}" for arm, share in shares.items() if share)


def number(value: float) -> str:
    """A number as it was given.

    >>> number(-22500.0), number(0.05)
    ('−22,500', '0.05')
    """
    return f"{value:,.12g}".replace("-", "−")


def _plan(trial: Trial, page: int) -> Plan:
    memory = trial.memory()
    spec = memory.spec
    names = list(memory.users)
    pages = max(1, -(-len(names) // PAGE))
    page = min(page, pages - 1)
    return Plan(
        status=trial.status(),
        metrics=[
            MetricRow(
                name, m.unit, better(memory, name), "" if m.range is None else " to ".join(number(v) for v in m.range)
            )
            for name, m in spec.metrics.items()
        ],
        arms=[
            ArmRow(name, arm.about, _effects(arm), _state(memory, name, k))
            for k, (name, arm) in enumerate(spec.arms.items())
        ],
        users=[_user(memory, n, memory.definition(n)) for n in names[page * PAGE : (page + 1) * PAGE]],
        page=page,
        pages=pages,
        reward=None if spec.preference is None else reward(spec.preference),
        control=None if spec.control is None else control(spec.control),
        safety=_safety(memory),
        policy=(spec.policy.name, REGISTRY[spec.policy.name].about),
        settings={name: _setting(value) for name, value in spec.policy.settings.items()},
        learning=_learning(memory),
        context=[FieldRow(n, f.unit, number(f.typical), number(f.spread)) for n, f in spec.context.items()],
    )


def _state(memory: Memory, arm: str, k: int) -> str:
    said = "retired" if arm in memory.retired else "offered"
    return said + (", added later" if k >= memory.founders else "")


def _effects(arm: Arm) -> str:
    if arm.attributes is not None:
        return ", ".join(f"{name} {number(value)}" for name, value in arm.attributes.items())
    return "by a matrix, in the trial file" if arm.map is not None else "its own effects"


def _user(memory: Memory, name: str, user: User) -> UserRow:
    possible = [a for a in user.arms or memory.spec.arms if a not in memory.retired]
    everything = len(possible) == len(memory.spec.arms) - len(memory.retired)
    return UserRow(
        name,
        user.group or "",
        "as the trial" if user.preference is None else reward(user.preference),
        "as the trial" if user.control is None else control(user.control),
        "all" if everything else ", ".join(possible),
    )


def _safety(memory: Memory) -> list[str]:
    """What keeps users near their control, and how sure that is."""
    policy = memory.policy
    if not isinstance(policy, Policy):  # the published algorithms have no guard
        epsilon = _percent(getattr(policy, "tolerance", 0.0))
        return [
            f"Decisions that fall short of the control by more than {epsilon} of its reward are discouraged; "
            "none is excluded.",
            _delta(memory),
        ]
    guard = policy.guard
    kind = next(name for name, made in GUARDS.items() if made is type(guard))
    if kind == "off":
        return ["Guard off: nothing keeps decisions near the control.", _delta(memory)]
    said = [f"Guard {kind}: {guard.promise}."]
    tolerance = getattr(guard, "tolerance", None)
    if tolerance is not None:
        may, by = _at_most(tolerance.relative, tolerance.absolute, "reward", "")
        said.append(f"Tolerance: a decision {may} be expected to earn less than the control{by}.")
    said += [_guardrail(memory, rail) for rail in memory.spec.guardrails]
    level = getattr(guard, "confidence", None)
    if level == "anytime":
        said.append(f"Confidence: for all decisions at once, but for a chance of {_percent(memory.spec.delta)}.")
    elif level is not None:
        said.append(f"Confidence: {_percent(level)} for each decision.")
    return [*said, _delta(memory)]


def _delta(memory: Memory) -> str:
    chance = _percent(memory.spec.delta)
    return f"Guaranteed ranges on these pages hold at all times at once, but for a chance of {chance}."


def _guardrail(memory: Memory, rail: Guardrail) -> str:
    metric = memory.spec.metrics[rail.metric]
    way = "rise above" if metric.better == "lower" else "fall below"
    may, by = _at_most(rail.relative, rail.absolute, rail.metric, metric.unit)
    return f"Guardrail: whatever the preferences, {rail.metric} {may} be expected to {way} the control's{by}."


def _at_most(relative: float, absolute: float, what: str, unit: str) -> tuple[str, str]:
    """Whether something may fall short of the control's, and by how much.

    >>> _at_most(0.1, 0.5, "yield", "t/ha"), _at_most(0, 0, "reward", "")
    (('may', ", by 10 % of the control's yield plus 0.5 t/ha at most"), ('may not', ''))
    """
    parts = [f"{_percent(relative)} of the control's {what}"] if relative else []
    parts += [f"{number(absolute)}{f' {unit}' if unit else ''}"] if absolute else []
    return ("may", f", by {' plus '.join(parts)} at most") if parts else ("may not", "")


def _learning(memory: Memory) -> list[str]:
    """What comes back, how often, and how it scatters."""
    spec = memory.spec
    said = [
        "There is one decision for each user in an episode."
        if spec.decisions == "one per episode"
        else "There may be any number of decisions for a user in an episode.",
        "Outcomes are told as they are measured."
        if spec.feedback == "absolute"
        else "Outcomes are told with those of a control plot, and what counts is the difference.",
    ]
    noise = spec.noise
    if noise.kind == "learned":
        said.append("How outcomes scatter is learned from the data.")
    else:
        if common := _scatter(memory, noise):
            said.append(f"How outcomes scatter is known: {common}.")
        said += [f"How outcomes of {arm} scatter is known: {_scatter(memory, own)}." for arm, own in noise.arms.items()]
    by = {"constant": "", "norm": "1 + the size of the context"}.get(noise.scale, noise.scale)
    level = "" if noise.level == 1 else number(noise.level)
    if by or level:
        said.append(f"Their covariance is multiplied by {' and by '.join(x for x in (level, by) if x)}.")
    return said


def _scatter(memory: Memory, noise: ArmNoise) -> str:
    if noise.sd is not None:
        units = {name: metric.unit for name, metric in memory.spec.metrics.items()}
        sds = ", ".join(f"{m} {number(sd)}{f' {units[m]}' if units[m] else ''}" for m, sd in noise.sd.items())
        return f"standard deviation of {sds}"
    return "" if noise.covariance is None else "a covariance matrix, in the trial file"


def _percent(share: float) -> str:
    return f"{number(100 * share)} %"


def _setting(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value) if isinstance(value, int | float) else str(value)
