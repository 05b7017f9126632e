"""The decisions of a trial, and the full story of one; amend it, or give it up."""

from __future__ import annotations

from collections import Counter
from typing import Any

from starlette.responses import Response

from drimed.errors import BatchError, DrimedError, InputError
from drimed.findings.charts import allocation, forest
from drimed.formatting import short
from drimed.records import Effect
from drimed.service import metrics
from drimed.service.pages import listing, plan, telling
from drimed.service.pages.listing import STATES, Entry, Wanted
from drimed.service.pages.route import Pages, Visit, go, whole
from drimed.service.pages.telling import Doubt
from drimed.service.problems import Refusal
from drimed.service.tokens import ASK_TELL, READ
from drimed.trial import events as kinds
from drimed.trial import sheets
from drimed.trial.events import Event
from drimed.trial.memory import Memory
from drimed.trial.outcomes import Report
from drimed.trial.records import Status, Told
from drimed.trial.spec import User
from drimed.trial.trial import Trial

CHANGES = tuple(k for k in kinds.KINDS if k not in (kinds.DECISION, kinds.OUTCOME))
WISHES = (kinds.PREFERENCE, kinds.CONTROL)
MOST_CHANGES = 50

routes = Pages()


@routes.page("/trials/{trial}/log", READ)
async def log(visit: Visit) -> Response:
    """Decisions, searched and turned page by page."""
    number = visit.query("decision").strip()
    if number.isdecimal() and len(number) < 10:
        return go(f"/trials/{visit.trial}/decisions/{int(number)}")
    before = visit.query("before")
    wanted = Wanted(visit.query("user").strip(), visit.query("arm"), visit.query("state"))
    if wanted.state not in STATES:
        wanted = Wanted(wanted.user, wanted.arm)
    if visit.query("show") == "changes":
        return await _changes(visit)

    def look(trial: Trial) -> tuple[Status, listing.Listed, list[str]]:
        return trial.status(), listing.search(trial, wanted, before=whole(before)), list(trial.memory().problem.metrics)

    status, listed, names = await visit.service.read(visit.trial, look)
    error = f"“{number}” is not the number of a decision." if number else None
    return visit.page(
        "log.html", s=status, tab="log", listed=listed, wanted=wanted, states=STATES, metrics=names, error=error,
        later=bool(before),
    )  # fmt: skip


async def _changes(visit: Visit) -> Response:
    before = visit.query("before")
    until = int(before) - 1 if before.isdecimal() and 0 < len(before) < 10 else None

    def look(trial: Trial) -> tuple[Status, list[Event], dict[int, str]]:
        status = trial.status()
        with trial.store.reading(trial.name) as ledger:
            found = list(ledger.events(until=until, kinds=CHANGES, limit=MOST_CHANGES + 1, newest_first=True))
            wishes = [e for e in found if e.kind in WISHES]
            told = list(ledger.events(until=wishes[0].seq, kinds=WISHES)) if wishes else []
        return status, found, _from_to(trial.memory(), told)

    status, events, from_to = await visit.service.read(visit.trial, look)
    more = events[MOST_CHANGES - 1].seq if len(events) > MOST_CHANGES else None
    rows = [(e, _change(e) + from_to.get(e.seq, "")) for e in events[:MOST_CHANGES]]
    return visit.page("changes.html", s=status, tab="log", rows=rows, more=more)


def _from_to(memory: Memory, events: list[Event]) -> dict[int, str]:
    """What preferences and controls were before each of these changes, and after; by the number of the event."""
    spec = memory.spec
    was: dict[str, list[User]] = {}
    for name, definition in memory.definitions:
        was.setdefault(name, []).append(definition)
    said, turns = {}, Counter[str]()
    for event in events:
        user = str(event.user)
        old, new = was[user][turns[user] : turns[user] + 2]
        turns[user] += 1
        if event.kind == kinds.PREFERENCE:
            sides = [plan.reward(u.preference or spec.preference or {}) for u in (old, new)]
        else:
            sides = [plan.control(u.control or spec.control or {}) for u in (old, new)]
        said[event.seq] = ": " + " → ".join(sides)
    return said


def _change(event: Event) -> str:
    """What happened, in words."""
    body, user = event.body, event.user
    made = {
        kinds.CREATED: "created",
        kinds.EPISODE: f"episode {body.get('episode')} opened",
        kinds.AMENDMENT: f"outcome of decision {event.decision} corrected",
        kinds.MISSING: f"outcome of decision {event.decision} given up",
        kinds.USER: f"user {user} added",
        kinds.PREFERENCE: f"preference of {user} changed",
        kinds.CONTROL: f"control of {user} changed",
        kinds.ARM: f"arm {body.get('arm')} added",
        kinds.RETIRED: f"arm {body.get('arm')} retired",
    }
    return made.get(event.kind, event.kind)


@routes.page("/trials/{trial}/decisions/{decision}", READ)
async def decision(visit: Visit) -> Response:
    """What was known, what was decided and why, and what came of it."""
    return await _story(visit)


@routes.page("/trials/{trial}/decisions/{decision}/outcome", ASK_TELL, method="POST")
async def outcome(visit: Visit) -> Response:
    """Tell what came of it."""

    def act(trial: Trial, actor: str, _: str | None) -> str:
        reports = [r for r in telling.read_rows(visit) if r.decision == _number(visit)]
        if not reports:
            raise InputError("fill in at least one value")
        _confirmed(visit, trial, reports[0])
        told = trial.tell(reports[0].decision, reports[0].outcome, control=reports[0].control, actor=actor)
        return _after(trial, told, "told")

    return await _acted(visit, act, "outcome")


@routes.page("/trials/{trial}/decisions/{decision}/amend", ASK_TELL, method="POST")
async def amend(visit: Visit) -> Response:
    """Correct its outcome; an emptied field takes the value back."""

    def act(trial: Trial, actor: str, _: str | None) -> str:
        number = _number(visit)
        values: dict[str, dict[str, float | None]] = {"y": {}, "k": {}}
        with trial.store.reading(trial.name) as ledger:
            found = ledger.of_decisions([number])
        known = listing.entry_of(trial.memory(), found[number]) if number in found else None
        for name, value in visit.form.multi_items():
            kind, _, rest = name.partition(":")
            if kind not in values or not isinstance(value, str):
                continue
            metric = rest.partition(":")[2]
            had = known is not None and metric in (known.outcome if kind == "y" else known.control)
            if value.strip():
                values[kind][metric] = sheets.number(metric, value.strip())
            elif had:
                values[kind][metric] = None
        _confirmed(visit, trial, Report(number, values["y"], values["k"] or None))
        told = trial.amend(number, values["y"], reason=visit.field("reason"), control=values["k"] or None, actor=actor)
        return _after(trial, told, "amended")

    return await _acted(visit, act, "amend")


@routes.page("/trials/{trial}/decisions/{decision}/missing", ASK_TELL, method="POST")
async def missing(visit: Visit) -> Response:
    """Give its outcome up."""

    def act(trial: Trial, actor: str, _: str | None) -> str:
        return _after(trial, trial.mark_missing(_number(visit), reason=visit.field("reason"), actor=actor), "missing")

    return await _acted(visit, act, "missing")


class _DoubtfulError(InputError):
    """Values that somebody must confirm."""

    def __init__(self, doubt: Doubt) -> None:
        super().__init__(f"nothing was recorded yet: {doubt.said}")
        self.doubt = doubt


def _confirmed(visit: Visit, trial: Trial, report: Report) -> None:
    for doubt in telling.doubts(trial, [report]).values():
        if visit.field("sure") != doubt.mark:
            raise _DoubtfulError(doubt)


async def _acted(visit: Visit, act: Any, what: str) -> Response:
    try:
        return await visit.act(act)
    except _DoubtfulError as error:
        return await _story(visit, error=str(error), wrong=what, doubt=error.doubt)
    except BatchError as error:
        return await _story(visit, error="; ".join(error.errors.values()), wrong=what)
    except DrimedError as error:
        return await _story(visit, error=str(error), wrong=what)


def _after(trial: Trial, told: Told, done: str) -> str:
    again = told.state == "already recorded"
    metrics.OUTCOMES.inc(not again)
    return f"/trials/{trial.name}/decisions/{told.decision}?done={'nothing' if again else done}"


async def _story(visit: Visit, *, error: str | None = None, wrong: str = "", doubt: Doubt | None = None) -> Response:
    number = _number(visit)

    def look(trial: Trial) -> tuple[Status, Entry, list[Event], dict[str, str], bool, float | str]:
        memory = trial.memory()
        with trial.store.reading(trial.name) as ledger:
            found = ledger.of_decisions([number])
        if number not in found:
            raise Refusal(404, "unknown", f"trial {trial.name!r} has no decision {number}")
        units = {name: metric.unit for name, metric in memory.spec.metrics.items()}
        plots = memory.spec.feedback == "difference"
        return (
            trial.status(),
            listing.entry_of(memory, found[number]),
            found[number],
            units,
            plots,
            memory.spec.confidence,
        )

    status, entry, events, units, plots, confidence = await visit.service.read(visit.trial, look)
    given = entry.given
    then = [
        forest.Row(
            arm,
            Effect(given.user, arm, "reward", e.estimate, e.low, e.high, e.low, e.high),
            strong=arm == given.arm,
            single=True,
        )
        for arm, e in (given.effects or {}).items()
        if not e.estimate == e.low == e.high == 0
    ]
    level = "anytime" if confidence == "anytime" else f"{100 * float(confidence):g} %"
    title = "What was known of each arm, against this user's control"
    return visit.page(
        "decision.html",
        422 if error else 200,
        s=status,
        tab="log",
        d=given,
        e=entry,
        events=[(event, _came(event)) for event in events[1:]],
        first=events[0],
        units=units,
        plots=plots,
        level=level,
        probabilities=allocation.probabilities(given.probabilities, given.arm),
        effects=forest.forest("then-chart", title, then, unit="reward", promise=level),
        error=error,
        wrong=wrong,
        doubt=doubt,
    )


def _came(event: Event) -> str:
    """What an event about a decision says."""
    body = event.body
    if event.kind == kinds.MISSING:
        return "the outcome will not come"
    now, was = body["outcome"], body.get("was") or {"metrics": {}, "control": None}
    said = []
    for part, prefix in (("metrics", ""), ("control", "control plot's ")):
        new, old = now[part] or {}, was[part] or {}
        for name in dict.fromkeys([*old, *new]):
            if name not in old:
                said.append(f"{prefix}{name} {short(new[name])}")
            elif name not in new:
                said.append(f"{prefix}{name} {_exact(old[name])} taken back")
            elif old[name] != new[name]:
                said.append(f"{prefix}{name} {_exact(old[name])} → {_exact(new[name])}")
    return ", ".join(said) + (" (after it had been given up)" if body.get("late") else "")


def _exact(value: float) -> str:
    return f"{value:.12g}".replace("-", "−")


def _number(visit: Visit) -> int:
    text = str(visit.request.path_params["decision"])
    if not text.isdecimal() or len(text) > 9:
        raise Refusal(404, "unknown", f"a decision is known by its number, got {text[:50]!r}")
    return int(text)
