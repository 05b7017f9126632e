"""What a trial is: what is measured, which arms there are, for whom, and what is promised, as it stands now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from starlette.responses import Response

from drimed.findings.effects import better
from drimed.findings.stopping import describe_rules
from drimed.formatting import number, percent
from drimed.learning.field.contrasts import ALPHA
from drimed.policies.registry import find
from drimed.service.pages import model
from drimed.service.pages.rendering import shown
from drimed.service.pages.route import Pages, Visit, whole
from drimed.service.tokens import READ
from drimed.trial import queries
from drimed.trial.parts import ArmNoise, Cohort, Guardrail, User
from drimed.trial.spec import TrialSpec
from drimed.trial.state import TrialState
from drimed.trial.why import at_most

PAGE = 100  # users
DEFAULT = "default"  # as the trial file says for all users

routes = Pages()


@routes.page("/trials/{trial}/plan", READ)
async def plan(visit: Visit) -> Response:
    """The whole trial, for a reader who did not write it; without the seed, which would tell the next arm."""
    state = await visit.service.read(visit.trial, lambda trial: trial.state())
    spec, names = state.spec, list(state.users)
    pages = max(1, -(-len(names) // PAGE))
    page = min(whole(visit.query("users"), 6) or 0, pages - 1)
    return visit.page(
        "plan.html",
        s=queries.status(state),
        tab="plan",
        spec=spec,
        reward="" if spec.preference is None else reward(spec.preference),
        control="" if spec.control is None else control(spec.control),
        better={name: better(state, name) for name in spec.metrics},
        added=list(spec.arms)[len(state.created.body["spec"]["arms"]) :],
        safety=_safety(state),
        stopping=describe_rules(spec.stopping),
        looked=queries.status(state),
        about_policy=find(spec.policy.name).about,
        settings={name: _setting(value) for name, value in spec.policy.settings.items()},
        model=model.learned(state),
        covariates=model.covariates(state),
        joining=model.joining(spec),
        learning=_learning(spec),
        rehearsed=_rehearsed(state),
        users=user_rows(state, names[page * PAGE : (page + 1) * PAGE]),
        page=page,
        pages=pages,
        size=PAGE,
    )


def user_rows(state: TrialState, names: Sequence[str]) -> list[dict[str, str]]:
    """Some users as they are now, for a table."""
    rows, offered = [], [a for a in state.spec.arms if a not in state.retired]
    for name in names:
        user = state.profile(name).definition
        known, cohort = state.spec.resolved(user), state.spec.cohorts.get(user.cohort or "", Cohort())
        weighs = user.preference is not None or cohort.preference is not None
        compares = user.control is not None or cohort.control is not None
        possible = [a for a in known.arms or offered if a in offered]
        rows.append(
            {
                "name": name,
                "group": state.spec.group_of(user) or "",
                "cohort": user.cohort or "",
                "about": ", ".join(f"{a} {shown(value)}" for a, value in (user.attributes or {}).items()),
                "plots": _plots(user),
                "reward": reward(known.preference or {}) if weighs else DEFAULT,
                "control": control(known.control or {}) if compares else DEFAULT,
                "arms": "all" if len(possible) == len(offered) else ", ".join(possible),
            }
        )
    return rows


def _plots(user: User) -> str:
    """The plots of a user, in their blocks.

    >>> _plots(User(blocks={"A": ["A1", "A2"], "B": ["B1"]})), _plots(User(plots=["7", "8"]))
    ('A: A1, A2; B: B1', '7, 8')
    """
    if user.blocks is not None:
        return "; ".join(f"{block}: {', '.join(plots)}" for block, plots in user.blocks.items())
    return ", ".join(user.plots or ())


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


def _safety(state: TrialState) -> list[str]:
    """What keeps users near their control, and how sure that is."""
    traits, spec = state.policy.traits, state.spec
    guard = traits.guard.partition(" ")[0]  # without its confidence, which has a sentence of its own
    chance = _percent(spec.delta)
    ranges = f"Guaranteed ranges on these pages hold at all times at once, except with a probability of {chance}."
    if spec.kind != "paper":
        ranges = (
            f"Ranges at all times on these pages hold at all looks together in {_percent(1 - ALPHA)} of trials, for "
            "each effect by itself, if users, seasons and arms vary as the model has learned."
        )
    if guard == "off":
        return ["Guard off: nothing keeps decisions near the control.", *_floors(state), ranges]
    said = [
        f"Guard {guard}: {traits.promise}. Certified means: shown to stay within the tolerance, as surely as said here."
    ]
    if traits.tolerance is not None:
        may, by = _at_most(traits.tolerance.relative, traits.tolerance.absolute, "reward", spec.reward.unit)
        said.append(f"Tolerance: the expected reward of a decision {may} be below that of the control{by}.")
    said += [_guardrail(spec, rail) for rail in spec.guardrails]
    said += _floors(state)
    if traits.confidence == "anytime":
        said.append(f"Confidence: for all decisions at once, except with a probability of {chance}.")
    elif traits.confidence is not None:
        said.append(f"Confidence: {_percent(float(traits.confidence))} for each decision.")
    return [*said, ranges]


def _floors(state: TrialState) -> list[str]:
    floors = state.spec.floors
    if floors is None:
        return []
    parts = [f"the control has at least {_percent(floors.control)}"] if floors.control else []
    also = "every arm, the control too, has on top of that" if parts else "every arm has"
    parts += [f"{also} at least {_percent(floors.arms)} where the guard allows it"] if floors.arms else []
    whose = "the trial's" if floors.count == "all" else "the user's own"
    fall = f", falling as the number of {whose} decisions to the power {-floors.shrink:g}" if floors.shrink else ""
    said = [f"Floor: of the chance in each decision, {' and '.join(parts)}{fall}."] if parts else []
    if parts and floors.until is not None:
        ended = queries.status(state).floor_ended
        said.append(
            f"The floor ends when the stopping rule {floors.until} is met, for whom it is met"
            + (f"; it has ended for {', '.join(ended)}." if ended else ".")
        )
    return said


def _guardrail(spec: TrialSpec, rail: Guardrail) -> str:
    metric = spec.metrics[rail.metric]
    way = "above" if metric.better == "lower" else "below"
    may, by = _at_most(rail.relative, rail.absolute, rail.metric, metric.unit)
    return f"Guardrail: whatever the preferences, the expected {rail.metric} {may} be {way} that of the control{by}."


def _at_most(relative: float, absolute: float, what: str, unit: str) -> tuple[str, str]:
    """Whether something may fall short of the control's, and by how much.

    >>> _at_most(0.1, 0.5, "yield", "t/ha"), _at_most(0, 0, "reward", "")
    (('may', ", by at most 10 % of the control's yield plus 0.5 t/ha"), ('may not', ''))
    """
    by = at_most(relative, absolute, what, unit)
    return ("may", f", by at most {by}") if by else ("may not", "")


def _learning(spec: TrialSpec) -> list[str]:
    """How often users are decided for, what is measured, and how noisy it is."""
    noise = spec.noise
    said = [
        "Each user, or each of its plots, has one decision in a season."
        if spec.decisions == "one per episode"
        else "Each user may have any number of decisions in a season.",
        "Outcomes are recorded as they are measured."
        if spec.feedback == "absolute"
        else "Outcomes are recorded with those of a control plot, and the difference counts.",
    ]
    if noise.kind == "learned":
        said.append("The noise of the outcomes is learned from the data.")
    else:
        if common := _noise(spec, noise):
            said.append(f"The noise of the outcomes is known: {common}.")
        said += [
            f"The noise of the outcomes of {arm} is known: {_noise(spec, own)}." for arm, own in noise.arms.items()
        ]
    by = {"constant": "", "norm": "1 + the size of the context"}.get(noise.scale, noise.scale)
    level = "" if noise.level == 1 else number(noise.level)
    if by or level:
        said.append(f"Its covariance is multiplied by {' and by '.join(x for x in (level, by) if x)}.")
    return said


def _rehearsed(state: TrialState) -> str:
    """What was seen of this trial before it began; empty: nothing."""
    seen = state.created.body.get("rehearsal")
    if seen is None:
        return ""
    found = "" if seen["power"] is None else f" A better arm was found in {percent(seen['power'])} of them."
    return (
        f"Before it was created, this trial was simulated {seen['trials']} times over {seen['seasons']} seasons "
        f"(scenario: {seen['scenario']}): {percent(seen['control'])} of decisions were for the control.{found} "
        f"Rehearsal {seen['hash'][:16]}."
    )


def _noise(spec: TrialSpec, noise: ArmNoise) -> str:
    if noise.sd is not None:
        units = {name: f" {metric.unit}" if metric.unit else "" for name, metric in spec.metrics.items()}
        return "standard deviation of " + ", ".join(f"{m} {number(sd)}{units[m]}" for m, sd in noise.sd.items())
    return "" if noise.covariance is None else "a covariance matrix, in the trial file"


def _percent(share: float) -> str:
    return f"{number(100 * share)} %"


def _setting(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value) if isinstance(value, int | float) else str(value)
