"""Read a trial: its status, decisions, users and pending outcomes.

Command line, HTTP and pages all read here. Everything is taken from a ledger and the state at the same moment
(`Trial.reading`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from difflib import get_close_matches
from math import hypot, nan

from drimed.errors import InputError, UnknownDecisionError
from drimed.formatting import counted, listed
from drimed.policies.guards.base import reason_text
from drimed.policies.protocol import AnyPolicy
from drimed.records import OPEN, Alarm, Decision, Event, Interval, Member, Opening, Page, Search, Status
from drimed.trial.events import Decided, HistoryRead, body_of
from drimed.trial.problem import Problem, build_policy
from drimed.trial.seasons import UNNAMED
from drimed.trial.spec import LARGEST, SEASONLESS, WRONG_UNIT, TrialSpec, User
from drimed.trial.spec_faults import MOST_COEFFICIENTS
from drimed.trial.state import RecordedDecision, TrialState, decision_number, recorded_decisions
from drimed.trial.store import Ledger

PAGE = 25
STANDS = 0.8  # share of the control beyond which a trial learns little about anything else
COUNTS = ("decisions", "pending", "partial", "complete", "missing", "amendments", "failures")
HELD_OUT = "held out: the control for the whole trial"
# Of a decision, as callers get it.
RECORDED = ("episode", "arm", "propensity", "share", "unavailable", "plot", "block", "drawn", "held_out")


def record(state: TrialState, recorded: RecordedDecision, *, repeated: bool = False) -> Decision:
    """A decision as callers get it."""
    event, outcome, arms = recorded.event, recorded.outcome, state.problem.arms
    body = body_of(event, Decided)
    effects = None
    if body.estimate is not None and body.half is not None:
        parts = zip(arms, body.estimate, body.half, body.below or body.half, strict=False)
        most = state.problem.largest_effect(state.profiles[body.profile].preference)
        effects = {arm: Interval(e, max(e - b, -most), min(e + h, most)) for arm, e, h, b in parts if h <= LARGEST}
    chances = dict(zip(arms, body.probabilities, strict=False))
    controls = [arm for arm, share in zip(arms, state.profiles[body.profile].control.tolist(), strict=False) if share]
    control, whom = controls[0] if len(controls) == 1 else "the control", "user" if body.plot is None else "plot"
    reason = reason_text(body.reason, body.share, control, sum(chances.get(arm, 0.0) for arm in controls), whom)
    return Decision(
        id=event.decision or 0,
        user=str(event.user),
        probabilities=chances,
        reason=HELD_OUT if body.held_out is not None and body.drawn else reason,
        effects=effects,
        context=None if body.context is None else state.context_of(body.context),
        state_version=body.state,
        time=event.time,
        actor=event.actor,
        season=state.seasons.get(body.episode, UNNAMED).name,
        repeated=repeated,
        state=recorded.state,
        outcome=None if outcome is None else outcome["metrics"],
        control=None if outcome is None else outcome["control"],
        reward=None if outcome is None else state.reward(state.profiles[body.profile], outcome),
        amendments=recorded.amendments,
        given=recorded.given,
        **{name: getattr(body, name) for name in RECORDED},
        code=state.code_of(event.decision or 0, body.arm),
    )


def status(state: TrialState) -> Status:
    spec, counts, looked = state.spec, state.counts, state.looked
    return Status(
        name=spec.name,
        about=spec.about,
        status=state.status,
        episode=state.episode.number,
        users=len(state.users),
        arms=state.problem.arms,
        retired=list(state.retired),
        **{name: getattr(counts, name) for name in COUNTS},
        policy=spec.policy.name,
        created=state.created.time,
        events=state.seq,
        hash=state.hash,
        notes=[
            *notes(spec, len(state.users), policy=state.policy),
            *([] if counts.decisions or state.created.body.get("rehearsal") else [not_rehearsed()]),
        ],
        model=spec.kind,
        enrolment="open" if spec.enrols else "closed",
        season=state.seasons.get(state.episode.number, UNNAMED).name,
        looks=looked.count,
        rules_met=list(looked.met),
        floor_ended=[key.partition(":")[2] for key in looked.ended],
        halted=looked.halted,
        history="" if state.history is None else past_text(spec, state.history),
    )


def past_text(spec: TrialSpec, past: HistoryRead) -> str:
    """The history of a trial and what rests on it, in a sentence."""
    rows, units, seasons = len(past.arm), len(past.units), len(past.seasons)
    size = f"{counted(rows, 'outcome')} of {counted(units, 'unit')} in {counted(seasons, 'season')}"
    same = listed([arm for arm in past.arms if arm in spec.arms])
    if spec.past_weight and same:
        often = f"; each counts {spec.past_weight:g} times" if spec.past_weight < 1 else ""
        effects = f"and effects of {same} too{often}"
    else:
        effects = "effects of arms do not" + (", which were not given at random" if same else "")
    others = [f"{arm} (not {close[0]}?)" if (close := get_close_matches(arm, spec.arms)) else arm
              for arm in past.arms if arm not in spec.arms]  # fmt: skip
    left = f" Not offered by the trial: {listed(others)}." if others else ""
    return f"Before the trial: {size} ({past.file}). Levels and variances rest on them, {effects}.{left}"


def ways_off_the_control(spec: TrialSpec, policy: AnyPolicy | None = None, *, seasons: int | None = None) -> str:
    """Changes of its file that may let a trial leave its control, in words; it has outcomes of so many seasons."""
    traits, people = (policy or build_policy(Problem(spec))).traits, spec.kind == "people"
    scattering = [name for name, metric in spec.metrics.items() if metric.kind == "number" and metric.spread is None]
    declared = spec.kind == "paper" or spec.history is not None or not scattering
    ways = {
        "a wider tolerance": traits.tolerance is not None,
        "a lower confidence": traits.confidence is not None,
        "the promise to people alike (leave `for` out)": people and spec.promise == "each",
        f"a declared spread of {listed(scattering)}": not declared,
        "a second season": spec.has_one_season or (seasons == 1 and not people),
        "more people" if people else "more plots": True,
    }
    return listed([way for way, helps in ways.items() if helps], len(ways), " or ")


def notes(spec: TrialSpec, users: int = 0, *, policy: AnyPolicy | None = None) -> list[str]:
    """Notes for a person before this trial starts, or with so many users now."""
    traits, texts = (policy or build_policy(Problem(spec))).traits, []
    if traits.protects == "discourages":
        texts.append('this guard only discourages decisions below the control; guard = "certain" excludes them')
    elif traits.protects == "nothing":
        texts.append(f'policy {spec.policy.name!r} does not protect users; dri_med does, or give guard = "expected"')
    elif traits.tolerance is not None and traits.protects != "sum" and (note := traits.tolerance.note()) is not None:
        texts.append(note)
    if traits.protects == "every arm" and next(iter(spec.arms.values())).kind == "own effects":
        text = "guard 'certain' cannot certify an arm that was never given, where arms have no attributes in common"
        texts.append(f'{text}: the trial may stay on the control; describe the arms, or use guard = "expected"')
    has_floor = spec.floors is not None and spec.floors.control > 0
    if spec.kind == "field" and traits.tolerance is not None and not has_floor and not users:  # fixed once it has begun
        texts.append("the control has no minimum probability; set `[floors] control = 0.05`")
    if spec.kind == "people" and spec.promise == "each" and traits.tolerance is not None:
        texts.append(
            'the promise is to each person (`for = "each"`): one outcome cannot tell their own effect from noise, so '
            "that the trial stays on the control unless people come back many times; leave `for` out to promise it to "
            "people alike"
        )
    if traits.tolerance is not None:
        texts += _unit_notes(spec)
    seasons = spec.stopping.seasons if spec.stopping is not None and spec.kind != "paper" and spec.model.seasons else 0
    units = seasons if spec.enrols else users or len(spec.users)
    if seasons and min(seasons, units or 0) * (len(spec.arms) + 1) * len(spec.metrics) > MOST_COEFFICIENTS:
        texts.append(
            f"users and planned seasons ({seasons:,}) are both many: a decision may come to take minutes "
            "and gigabytes; let a season be a longer time, or end the trial earlier"
        )
    if spec.has_one_season and traits.tolerance is not None:
        texts.append(
            "all outcomes will be of one season: what an arm brings in an average season cannot be told from its luck "
            "in this one, so that the trial may stay on the control, and nothing is called better; plan more seasons, "
            "or write `[model] seasons = false` if nothing shifts from one season to the next"
        )
    if spec.holdout is not None and not spec.enrols and spec.holdout.share * (size := users or len(spec.users)) < 2:
        text = f"of {counted(size, 'user')} about {spec.holdout.share * size:.2g} will be held out, and two are needed"
        texts.append(f"{text} to compare the policy with the control")
    if not spec.users and not users and not spec.enrols:
        texts.append("there are no users yet; add them before asking")
    on_model = [name for name, rule in spec.rules.items() if rule.evidence == "model"]
    if on_model and spec.confounds_seasons_with_arms:
        texts.append(f"{listed(on_model)}: {SEASONLESS}")
    if spec.blinding is not None and spec.seed is not None:
        texts.append("codes and arms can be computed from the seed: leave `seed` out of the file of a blinded trial")
    for name, declared in spec.attributes.items():
        scaled = declared.levels is not None or (declared.typical is not None and declared.spread is not None)
        if not scaled and not any(name in (user.attributes or {}) for user in spec.users.values()):
            text = f"attribute {name!r} has no typical value or spread, and no user in the file to take them from"
            texts.append(f"{text}: declare both, or its levels if it is a category")
    return texts


def _unit_notes(spec: TrialSpec) -> Iterator[str]:
    """A tolerance that is out of all proportion to the declared spread of the reward, probably in another unit."""
    for user in spec.users.values() or [User()]:
        weights = {name: weight for name, weight in (spec.resolved(user).preference or {}).items() if weight}
        spread = hypot(*(weight * (spec.metrics[name].spread or nan) for name, weight in weights.items()))
        tolerance = spec.tolerance.absolute
        if tolerance > WRONG_UNIT * spread or (not spec.tolerance.relative and 0 < WRONG_UNIT * tolerance < spread):
            yield (
                f"the tolerance is {tolerance:g}, and rewards alike scatter by {spread:g}, as declared: check that "
                "they are in the same unit, or the tolerance allows anything, or nothing but the control"
            )
            return


def not_rehearsed(why: str = "") -> str:
    """What is not known of a trial that was created without a rehearsal."""
    unknown = "how likely this trial is to find a better arm, or to stay with the control, is not known"
    return f"not rehearsed{why}: {unknown}; `drimed trial rehearse` simulates it"


def alarms(state: TrialState) -> list[Alarm]:
    """Alarms that follow from the state alone."""
    if not state.counts.failures:
        return []
    n = state.counts.failures
    what = f"the model could not be computed {n} times: the control was given, or an outcome ignored"
    return [Alarm(what, None, "look for extreme values among the outcomes, and report this as a fault of drimed")]


def decision(ledger: Ledger, state: TrialState, number: int) -> Decision:
    return record(state, RecordedDecision.of(state, history(ledger, state, number)))


def history(ledger: Ledger, state: TrialState, number: int) -> list[Event]:
    """All events about a decision, its own first."""
    number = decision_number(number)
    events = ledger.of_decisions([number])
    if number not in events:
        raise UnknownDecisionError(ledger.name, number)
    return [e for e in events[number] if e.seq <= state.seq]


def decisions(ledger: Ledger, state: TrialState, numbers: Iterable[int] | None = None) -> Iterator[Decision]:
    """Decisions with their outcomes, in order: some, or (None) all; unknown ones are left out."""
    return (record(state, one) for one in recorded_decisions(ledger, state, numbers))


def search(
    ledger: Ledger, state: TrialState, wanted: Search, *, before: int | None = None, limit: int = PAGE
) -> Page[Decision]:
    """Decisions before number `before`, newest first."""
    rows = ledger.decision_rows(wanted, before=before, limit=limit + 1)
    numbers = [row.decision for row in rows[:limit]]
    page = list(decisions(ledger, state, numbers))[::-1]
    return Page(page, str(numbers[-1]) if len(rows) > limit else None)


def pending(ledger: Ledger) -> dict[int, str]:
    """Decisions whose outcome is not complete and may still come, in order: decision -> pending or partial."""
    rows = ledger.decision_rows(Search(state=OPEN))
    return {row.decision: row.state for row in reversed(rows)}


def users(state: TrialState, *, limit: int, after: str | None = None) -> Page[Member]:
    """Some users as described last, in the order in which they joined."""
    page = page_of(list(state.users), limit, after)
    definitions = {name: dict(state.profile(name).definition) for name in page.items}
    return Page([Member(name=name, **definition) for name, definition in definitions.items()], page.next)


def page_of(names: list[str], limit: int, after: str | None) -> Page[str]:
    """Some names; `after` is the `next` of the page before."""
    if after is not None and after not in names:
        raise InputError(f"nothing follows {after!r}; begin again without `after`", ("after",))
    start = 0 if after is None else names.index(after) + 1
    page = names[start : start + limit]
    return Page(page, page[-1] if len(names) > start + limit else None)


def openings(ledger: Ledger, state: TrialState) -> list[Opening]:
    """All openings of the code, in order."""
    events = (next(ledger.events(after=seq - 1, until=seq)) for seq in state.openings)
    return [opening(ledger, state, event) for event in events]


def opening(ledger: Ledger, state: TrialState, event: Event) -> Opening:
    """An opening of the code, for one decision or for all."""
    record = Opening(event.time, event.actor, event.body["reason"])
    if "decision" not in event.body:
        return replace(record, codes=state.codes or None)
    revealed = decision(ledger, state, event.body["decision"])
    return replace(record, decision=revealed.id, arm=revealed.arm, code=revealed.code)
