"""The decisions of a trial, and all about one of them: record its outcome there, correct it, or mark it as missing."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from starlette.responses import Response

from drimed.errors import ConflictError, DrimedError, InputError
from drimed.findings.charts import effects, progress
from drimed.findings.checks import no_promise
from drimed.formatting import number, short
from drimed.records import AmendRequest, Decision, Effect, Event, Receipt, Report, Status, TellRequest
from drimed.service import analyses, observing
from drimed.service.pages import forms, telling
from drimed.service.pages.forms import NO_ERRORS, FormErrors
from drimed.service.pages.plan import control, reward
from drimed.service.pages.route import Pages, Visit, go, whole
from drimed.service.problems import Refusal
from drimed.service.tokens import ANY, READ, TELL
from drimed.trial import blinding, queries, sheets
from drimed.trial import events as kinds
from drimed.trial import telling as outcomes
from drimed.trial.columns import control_plot
from drimed.trial.model_ranges import seasons_before
from drimed.trial.parts import User
from drimed.trial.queries import SEARCHES, Found, Search
from drimed.trial.spec import TrialSpec
from drimed.trial.state import TrialState
from drimed.trial.transaction import Transaction
from drimed.trial.trial import Trial
from drimed.trial.tried import untried
from drimed.trial.why import both_ends, in_words, possible

CHANGES = tuple(k for k in kinds.KINDS if k not in (kinds.DECISION, kinds.OUTCOME, kinds.SNAPSHOT))
WISHES = (kinds.PREFERENCE, kinds.CONTROL)
MOST_CHANGES = 50

routes = Pages()


@routes.page("/trials/{trial}/log", READ)
async def log(visit: Visit) -> Response:
    """Decisions that fit a search, page by page."""
    if visit.query("show") == "changes":
        return await _changes(visit)
    text = visit.query("decision").strip()
    if whole(text) is not None:
        return go(f"/trials/{visit.trial}/decisions/{whole(text)}")
    state, before = visit.query("state"), whole(visit.query("before"))
    wanted = Search(
        visit.query("user").strip(),
        visit.query("arm"),
        state if state in SEARCHES else "",
        visit.query("plot").strip(),
        visit.query("block").strip(),
    )

    def look(trial: Trial) -> tuple[Status, TrialSpec, Found]:
        with trial.reading() as (ledger, known):
            found = queries.search(ledger, known, wanted, before=before)
            return queries.status(known), known.spec, found

    status, spec, found = await visit.service.read(visit.trial, look)
    errors = FormErrors("search", [("decision", f"“{text}” is not the number of a decision")]) if text else NO_ERRORS
    return visit.page(
        "log.html", s=status, tab="log", found=found, wanted=wanted, searches=SEARCHES, spec=spec, errors=errors,
        later=before is not None, places=_places(wanted, found.decisions),
    )  # fmt: skip


def _places(wanted: Search, found: Sequence[Decision]) -> list[str]:
    """The columns that tell plots apart, where there are any or somebody looks for one."""
    return list(sheets.PLACES) if wanted.plot or wanted.block else sheets.places_of(found)


async def _changes(visit: Visit) -> Response:
    before = whole(visit.query("before"))

    def look(trial: Trial) -> tuple[Status, list[Event], dict[int, str]]:
        with trial.reading() as (ledger, state):
            until = min(state.seq, before - 1) if before else state.seq
            found = list(ledger.events(until=until, kinds=CHANGES, limit=MOST_CHANGES + 1, newest_first=True))
            wishes = [e for e in found if e.kind in WISHES]
            past = list(ledger.events(until=wishes[0].seq, kinds=WISHES)) if wishes else []
            return queries.status(state), found, _before_and_after(state, past)

    status, events, from_to = await visit.service.read(visit.trial, look)
    more = events[MOST_CHANGES - 1].seq if len(events) > MOST_CHANGES else None
    rows = [(e, ": ".join(filter(None, (_change(e), from_to.get(e.seq))))) for e in events[:MOST_CHANGES]]
    return visit.page("changes.html", s=status, tab="log", rows=rows, more=more)


@routes.page("/trials/{trial}/decisions/{decision}", ANY)
async def decision(visit: Visit) -> Response:
    """What was known, what was decided and why, and the outcome."""
    return await _page(visit)


@routes.page("/trials/{trial}/decisions/{decision}/outcome", TELL, method="POST")
async def outcome(visit: Visit) -> Response:
    """Record its outcome, or the rest of it."""

    def act(tx: Transaction) -> Receipt:
        report = _report(visit)
        return forms.confirmed(visit, lambda sure: outcomes.tell(tx, TellRequest(reports=[report], confirm=sure)))[0]

    return await _act(visit, act, "outcome")


@routes.page("/trials/{trial}/decisions/{decision}/amend", TELL, method="POST")
async def amend(visit: Visit) -> Response:
    """Correct its outcome; an emptied input takes the value back."""

    def act(tx: Transaction) -> Receipt:
        report, reason = _report(visit, blank=True), visit.field("reason")
        saw = _saw(visit)
        return forms.confirmed(
            visit, lambda sure: [outcomes.amend(tx, AmendRequest(report=report, reason=reason, confirm=sure, saw=saw))]
        )[0]

    return await _act(visit, act, "amend")


@routes.page("/trials/{trial}/decisions/{decision}/missing", TELL, method="POST")
async def missing(visit: Visit) -> Response:
    """Mark what is not there of its outcome as missing."""
    return await _act(visit, lambda tx: outcomes.mark_missing(tx, _number(visit), visit.field("reason")), "missing")


def _report(visit: Visit, *, blank: bool = False) -> Report:
    """What the form says of this decision."""
    for report in telling.reports(telling.typed(visit, blank=blank)):
        if report.decision == _number(visit):
            return report
    raise InputError("fill in at least one value")


def _shown(d: Decision, spec: TrialSpec) -> str:
    """The outcome as a page shows it, for the form that corrects it."""
    parts = {"outcome": d.outcome, "control": d.control if spec.feedback == "difference" else None}
    seen = {part: None if v is None else {m: v.get(m) for m in spec.metrics} for part, v in parts.items()}
    return json.dumps(seen)


def _saw(visit: Visit) -> Report | None:
    """The outcome as the page that was sent showed it; a page from elsewhere shows nothing."""
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        seen = json.loads(visit.field("saw"))
        return Report(_number(visit), dict(seen["outcome"] or {}), seen["control"] and dict(seen["control"]))
    return None


async def _act(visit: Visit, act: Callable[[Transaction], Receipt], form: str) -> Response:
    def work(tx: Transaction) -> str:
        receipt = act(tx)
        new = receipt.result != "already recorded"
        observing.OUTCOMES.inc(new)
        done = {"amended": "amended", "missing": "missing"}.get(receipt.result, "recorded") if new else "nothing"
        return f"/trials/{visit.trial}/decisions/{receipt.decision}?done={done}"

    try:
        return await visit.act(work)
    except DrimedError as error:
        values = telling.typed(visit, blank=True) or {_number(visit): {}}
        found = forms.refused(form, error, lambda fault: telling.place(values, fault))
        conflict = isinstance(error, ConflictError)
        return await _page(visit, found, saw="" if conflict else visit.field("saw"), status=409 if conflict else 422)


async def _page(visit: Visit, errors: FormErrors = NO_ERRORS, *, saw: str = "", status: int = 200) -> Response:
    """`saw` is what the corrected form showed first; empty: what there is now."""
    number = _number(visit)

    def look(trial: Trial) -> dict[str, Any]:
        with trial.reading() as (ledger, state):
            found = queries.decision(ledger, state, number)
            events = queries.history(ledger, state, number)
            if visit.blinded:
                now = blinding.blinded_status(queries.status(state))
                found, events = blinding.blinded(state, found), blinding.blinded_history(events, visit.actor)
                return {"s": now, **_recorded(state, found, events, saw)}
            spec = state.spec
            opened = [o for o in blinding.openings(ledger, state) if o.decision in (None, number)]
            told, words = possible(state, found), in_words(ledger, state, found)
            more = {
                "first": events[0],
                "openings": opened,
                "why_words": words,
                "reward_unit": spec.reward.unit,
                **_charts(state, told, untried(ledger, state, told)),
            }
            return {"s": queries.status(state), **_recorded(state, found, events[1:], saw), **more}

    shown = await visit.service.read(visit.trial, look)
    if not visit.blinded:
        shown["no_promise"] = await _no_promise(visit, shown["s"])
    template, tab = ("decision_blinded.html", "tell") if visit.blinded else ("decision.html", "log")
    return visit.page(template, status, tab=tab, errors=errors, **shown)


async def _no_promise(visit: Visit, status: Status) -> str | None:
    """That the promise is withdrawn, by the newest analysis that is there: only the first one is waited for."""
    kept = analyses.Analyses.of(visit.request)
    patience = analyses.PATIENCE if kept.known(visit.trial) is None else 0.0
    worked = await kept.get(visit.trial, status.hash, patience, needed=False)
    if worked is None or worked.analysis is None or worked.analysis.checks.withdrawn is None:
        return None
    return no_promise(worked.analysis.checks.withdrawn)


def _recorded(state: TrialState, found: Decision, events: Sequence[Event], saw: str) -> dict[str, Any]:
    """A decision, what is known about its user, and its outcome."""
    spec = state.spec
    units = {name: metric.unit for name, metric in spec.metrics.items()}
    return {
        "d": found,
        "saw": saw or _shown(found, spec),
        "events": [(event, _about_outcome(event, units)) for event in events],
        "known_units": {name: field.unit for part in (spec.attributes, spec.context) for name, field in part.items()},
        "units": units,
        "plots": spec.feedback == "difference",
        "about": _about(state, found.user),
    }


def _about(state: TrialState, user: str) -> list[tuple[str, float | str]]:
    """What is known about a user, whenever it is asked for."""
    profile = state.profile(user)
    group: list[tuple[str, float | str]] = [] if profile.group is None else [("group", profile.group)]
    return group + list((profile.definition.attributes or {}).items())


def _charts(state: TrialState, d: Decision, new: Collection[str]) -> dict[str, Any]:
    """How likely each arm was, and its effect as estimated at that moment; there is no outcome yet of `new` arms."""
    confidence, seasons = state.spec.confidence, seasons_before(state, d.user, d.episode)
    estimated = {arm: e for arm, e in (d.effects or {}).items() if not e.estimate == e.low == e.high == 0}
    control = set(d.effects or {}) - set(estimated)
    unknown = [arm for arm in d.probabilities if arm not in control and (arm in new or arm not in estimated)]
    then = [
        effects.EffectRow(
            arm,
            Effect(d.user, arm, "reward", e.estimate, e.low, e.high, e.low, e.high, seasons=seasons.get(arm)),
            strong=arm == d.arm,
            single=True,
        )
        for arm, e in estimated.items()
        if arm not in unknown
    ]
    level = "anytime" if confidence == "anytime" else both_ends(float(confidence))
    each = "for all decisions at once" if confidence == "anytime" else f"{100 * float(confidence):g} % at each end"
    title = "Estimated effect of each arm against this user's control"
    return {
        "confidence": each,
        "unknown": [] if d.effects is None else unknown,
        "probabilities": progress.probabilities(d.probabilities, d.arm),
        "effects": effects.forest("then-chart", title, then, on="reward", unit=state.spec.reward.unit, promise=level),
    }


def _number(visit: Visit) -> int:
    text = str(visit.request.path_params["decision"])
    found = whole(text)
    if found is None:
        raise Refusal(404, "unknown", f"expected the number of a decision, got {text[:50]!r}")
    return found


def _change(event: Event) -> str:
    """What an event other than a decision or an outcome changed."""
    body, user = event.body, event.user
    made = {
        kinds.CREATED: "created",
        kinds.EPISODE: f"season {body.get('name') or body.get('episode')} opened",
        kinds.AMENDMENT: f"outcome of decision {event.decision} corrected",
        kinds.MISSING: f"outcome of decision {event.decision} marked as missing",
        kinds.USER: f"user {user} added",
        kinds.PREFERENCE: f"preference of {user} changed",
        kinds.CONTROL: f"control of {user} changed",
        kinds.ARM: f"arm {body.get('arm')} added",
        kinds.RETIRED: f"arm {body.get('arm')} retired",
        kinds.LOOK: "a look at the stopping rules",
        kinds.RULES: "stopping rules changed",
        kinds.REVEALED: f"code opened for {f'decision {n}' if (n := body.get('decision')) else 'all decisions'}",
    }
    return made.get(event.kind, event.kind)


def _before_and_after(state: TrialState, events: Sequence[Event]) -> dict[int, str]:
    """What preferences and controls were before and after each change of one, by the event's number.

    `events` are all such changes up to some moment, in order.
    """
    definitions: dict[str, list[User]] = {}
    for profile in state.profiles.values() if events else ():
        definitions.setdefault(profile.user, []).append(profile.definition)
    said = {}
    for event in events:
        old, new = (state.spec.resolved(user) for user in definitions[str(event.user)][:2])
        del definitions[str(event.user)][0]
        if event.kind == kinds.PREFERENCE:
            found = [reward(u.preference or {}) for u in (old, new)]
        else:
            found = [control(u.control or {}) for u in (old, new)]
        said[event.seq] = " → ".join(found)
    return said


def _about_outcome(event: Event, units: Mapping[str, str]) -> str:
    """What an event recorded about a decision's outcome."""
    body = event.body
    if event.kind == kinds.MISSING:
        return "the rest of the outcome is missing" if body.get("was") else "the outcome is missing"
    recorded, was = body["outcome"], body.get("was") or {"metrics": {}, "control": None}
    said = []
    for part, prefix in (("metrics", ""), ("control", control_plot(""))):
        new, old = recorded[part] or {}, was[part] or {}
        for name in dict.fromkeys([*old, *new]):
            unit = f" {units[name]}" if units.get(name) else ""
            if name not in old:
                said.append(f"{prefix}{name} {short(new[name])}{unit}")
            elif name not in new:
                said.append(f"{prefix}{name} {number(old[name])}{unit} taken back")
            elif old[name] != new[name]:
                said.append(f"{prefix}{name} {number(old[name])} → {number(new[name])}{unit}")
    late = " (after it had been marked as missing)" if body.get("late") else ""
    return {kinds.AMENDMENT: "corrected: "}.get(event.kind, "recorded: ") + ", ".join(said) + late
