"""Pages that show: all trials, signing in, a trial's overview and plan, its decisions and changes."""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from starlette.responses import Response

from drimed.formatting import number, percent
from drimed.policies.rules.base import PLOT
from drimed.records import OTHER, SEARCHES, Decision, Effect, Event, Search, Status
from drimed.reports import charts
from drimed.reports import page as findings
from drimed.reports.analysis import Analysis, describe_rules
from drimed.reports.assumption_checks import no_promise
from drimed.reports.effects import EVERYBODY, groups
from drimed.service import auth
from drimed.service.api import unseeded
from drimed.service.auth import ANY, ASK_TELL, READ
from drimed.service.pages.base import NO_ERRORS, PUBLIC, FormErrors, Pages, Visit, go, set_cookie, shown, whole
from drimed.service.refusals import Refusal
from drimed.service.runtime import PATIENCE
from drimed.trial import blinding, queries, sheets
from drimed.trial import events as kinds
from drimed.trial.estimates import REWARD, seasons_before
from drimed.trial.explain import arms_without_outcomes, both_ends, explain, possible_arms, shortfall
from drimed.trial.problem import outcome_text
from drimed.trial.spec import Cohort, Metric, control_plot
from drimed.trial.state import TrialState
from drimed.trial.store import Ledger

TRIALS = 30  # on a page of all trials
USERS = 20  # on a page of the overview's tables
PLAN_USERS = 10  # on a page of the plan
PROMISED_TO = {
    "alike": "It is a promise to users alike: those with the same attributes, group and history.",
    "each": "It is a promise to each user, about the user's own effects.",
}
MOST_NAMES = 300  # that a list to choose from holds
MOST_CHANGES = 50
KEPT = ("who", "on", "users")  # choices of a reader, in the address of the overview
CHANGES = tuple(k for k in kinds.KINDS if k not in (kinds.DECISION, kinds.OUTCOME, kinds.SNAPSHOT))
DEFAULT = "default"  # as the trial file says for all users

_LIST = re.compile(r"\[[^\[\]{}]{0,100}\]")  # a list in JSON that fits a line
routes = Pages()


# All trials, signing in


@routes.page("/", ANY)
async def trials(visit: Visit) -> Response:
    """Every trial that the caller may see, with alarms as far as computing budget and patience go."""
    service = visit.service
    names = [n for n in await service.run(service.store.names) if visit.caller.trial in (None, n)]
    newest, page, pages = visit.part(names[::-1], TRIALS, "page")
    statuses = await asyncio.gather(*(service.read(name, lambda t: t.status()) for name in newest))
    alarms: dict[str, list[str]] = {}  # of trials whose analysis is there
    until = time.monotonic() + PATIENCE
    for s in () if visit.blinded else statuses:
        left = max(0.0, until - time.monotonic())
        one = await service.analyses.get(s.name, s.hash, left, needed=False)
        if one is not None:
            checks = None if one.analysis is None else one.analysis.checks
            alarms[s.name] = [one.failure or ""] if checks is None else [alarm.what for alarm in checks.alarms]
    statuses = [blinding.blinded_status(s) for s in statuses] if visit.blinded else statuses
    return visit.page("home.html", trials=statuses, alarms=alarms, page=page, pages=pages, total=len(names))


@routes.page("/sign-in", PUBLIC)
async def sign_in_form(visit: Visit, error: str | None = None, status: int = 200) -> Response:
    """The sign-in form; a service without tokens needs none."""
    if await visit.service.run(visit.service.access.check_open):
        return go("/", sign_out=True)
    after = local_address(visit.query("next") or visit.field("next"))
    return visit.page("sign_in.html", status, after=after, error=error)


@routes.page("/sign-in", PUBLIC, method="POST")
async def sign_in(visit: Visit) -> Response:
    """Keep the token in a cookie, if it is valid."""
    text = visit.field("token")
    if not text.isascii() or not text.isprintable() or ";" in text:
        return await sign_in_form(visit, "This is not a token: tokens begin with “drimed_”.", 422)
    try:
        await visit.service.identify(visit.request, text or "none")
    except Refusal as refusal:
        if refusal.status != 401:
            return await sign_in_form(visit, refusal.detail, refusal.status)
        return await sign_in_form(visit, "This token is not known, or it has expired or was revoked.", 422)
    response = go(local_address(visit.field("next")))
    set_cookie(visit.request, response, auth.COOKIE, text)
    return response


@routes.page("/sign-out", PUBLIC, method="POST")
async def sign_out(_: Visit) -> Response:
    return go("/sign-in", sign_out=True)


def local_address(text: str) -> str:
    """An address in these pages; anything else becomes the first page.

    >>> [local_address(a) for a in ("/trials/t?who=a", "//elsewhere.org", "https://elsewhere.org", "/\\\\x")]
    ['/trials/t?who=a', '/', '/', '/']
    """
    plain = text.startswith("/") and not text.startswith("//") and "\\" not in text and text.isprintable()
    return text if plain else "/"


@routes.page("/http", PUBLIC)
async def description(visit: Visit) -> Response:
    """The addresses of the HTTP interface, from its description."""
    schema = visit.request.app.openapi()
    operations = [(path, how, one) for path, methods in schema["paths"].items() for how, one in methods.items()]
    return visit.page("http.html", tags=schema["tags"], operations=operations)


# Overview


@routes.page("/trials/{trial}", READ)
async def overview(visit: Visit) -> Response:
    """The short answers of a trial, with links to all else that it found."""
    return await results(visit, "overview")


@routes.page("/trials/{trial}/results/{page}", READ)
async def results(visit: Visit, page: str = "") -> Response:
    """One page of what a trial found."""
    page = page or str(visit.request.path_params["page"])
    if page not in findings.PAGES:
        raise Refusal(404, "unknown", f"expected one of {', '.join(findings.PAGES)}, got {page[:50]!r}")
    status = queries.status(await visit.state())
    analysed = await visit.service.analyses.get(visit.trial, status.hash)
    analysis = None if analysed is None else analysed.analysis
    more: dict[str, Any] = (
        {"a": None} if analysis is None else await visit.service.run(lambda: _findings(visit, analysis))
    )
    kept = {name: value for name, value in visit.request.query_params.items() if name in KEPT}
    current = analysis is None or analysis.status.hash == status.hash
    behind = 0 if current or analysis is None else max(1, status.events - analysis.status.events)

    if page not in more.get("pages", [page]):
        return go(f"/trials/{visit.trial}")

    def here(**changed: object) -> str:
        return f"{visit.request.url.path}?{urlencode(kept | changed)}"

    return visit.page(
        "overview.html", s=status, tab="overview", live=True, worked=analysed, behind=behind, kept=kept,
        wait=math.ceil(visit.service.analyses.wait()), here=here, **more | {"shown": [page]},
    )  # fmt: skip


def _findings(visit: Visit, analysis: Analysis) -> dict[str, Any]:
    state = analysis.data.state
    users, named = list(state.users), [g for g in groups(state) if g != EVERYBODY]
    tabled, at, pages = visit.part(list(analysis.own_rows), USERS, "users")
    who, on = visit.query("who") or EVERYBODY, visit.query("on") or REWARD
    if who not in (EVERYBODY, findings.GROUPED, *named) and who not in state.users:
        who = EVERYBODY
    measures = [REWARD, *(m for m in state.problem.metrics if m != REWARD)]
    if on not in measures or (who in state.users and who not in named):
        on = REWARD  # single users are estimated on the reward only
    listed = list(analysis.own_rows) if len(users) <= MOST_NAMES else []
    foreseen = visit.may(ASK_TELL, visit.trial)  # the next decisions are shown to callers who may ask
    view = findings.PageView(who, [on], tabled, foreseen)
    return findings.page_context(analysis, view) | {
        "choice": {"who": who, "on": on, "groups": named, "users": listed, "measures": measures},
        "users_page": at,
        "users_pages": pages,
        "users_total": len(analysis.own_rows),
    }


# Plan


@routes.page("/trials/{trial}/plan", READ)
async def plan(visit: Visit) -> Response:
    """The trial file as it stands, without the seed, and what is promised."""
    state = await visit.state()
    spec, (names, page, pages) = state.spec, visit.part(list(state.users), PLAN_USERS, "users")
    text = json.dumps(unseeded(spec.plain()), indent=2, ensure_ascii=False)
    return visit.page(
        "plan.html",
        s=queries.status(state),
        tab="plan",
        reward="" if spec.preference is None else reward(spec.preference),
        reward_unit=spec.reward.unit,
        control="" if spec.control is None else control(spec.control),
        file=_LIST.sub(lambda found: " ".join(found[0].split()), text).split("\n"),
        promise=promise(state),
        stopping=describe_rules(spec.stopping, state.calibration),
        rehearsed=state.created.body.get("rehearsal"),
        stands=queries.STANDS,
        ways=queries.ways_off_the_control(spec, state.policy),
        users=user_rows(state, names),
        page=page,
        pages=pages,
        size=PLAN_USERS,
    )


def promise(state: TrialState) -> list[str]:
    """The promise to users, in sentences."""
    traits, spec = state.policy.traits, state.spec
    guard = traits.guard.partition(" ")[0]
    if guard == "off":
        return ["Guard off: nothing keeps decisions near the control."]
    sentences = [f"Guard {guard}: {traits.promise}."]
    limits: list[tuple[str, str, Any, str]] = [("reward", "below", traits.tolerance, spec.reward.unit)]
    for rail in spec.guardrails:
        metric = spec.metrics[rail.metric]
        limits.append((rail.metric, "above" if metric.better == "lower" else "below", rail, metric.unit))
    for what, way, limit, unit in limits:
        if limit is not None:
            by = shortfall(limit.relative, limit.absolute, what, unit)
            may = f"may be {way} that of the control by at most {by}" if by else f"may not be {way} that of the control"
            sentences.append(f"The expected {what} of a decision {may}.")
    if spec.kind != "paper":
        sentences.append(PROMISED_TO[spec.promise])
    if spec.floors is not None and spec.floors.control:
        sentences.append(f"The control has a probability of at least {percent(spec.floors.control)} in each decision.")
    chance = PLOT["open" if state.problem.floors is None else state.problem.floors.plot]
    if state.balances and chance <= 1 and any(len(user.block_of()) >= len(spec.arms) for user in spec.users.values()):
        likely = f", as long as that is its best arm with a chance of {percent(chance)} or more" if chance else ""
        sentences.append(f"A user with as many plots as arms has its control on one of them in every season{likely}.")
    if traits.confidence == "anytime":
        sentences.append(f"This holds for all decisions at once, except with a probability of {percent(spec.delta)}.")
    elif traits.confidence is not None:
        sentences.append(f"This holds with {number(100 * float(traits.confidence))} % confidence for each decision.")
    return sentences


def user_rows(state: TrialState, names: Sequence[str]) -> list[dict[str, str]]:
    """Users as they are now, for a table."""
    spec, rows = state.spec, []
    offered = [arm for arm in spec.arms if arm not in state.retired]
    for name in names:
        user = state.profile(name).definition
        resolved, cohort = spec.resolved(user), spec.cohorts.get(user.cohort or "", Cohort())
        arms = [arm for arm in resolved.arms or offered if arm in offered]
        blocks = user.blocks or {"": user.plots or []}
        plots = "; ".join((f"{block}: " if block else "") + ", ".join(own) for block, own in blocks.items())
        rows.append(
            {
                "name": name,
                "group": resolved.group or "",
                "cohort": user.cohort or "",
                "about": ", ".join(f"{a} {shown(value)}" for a, value in (user.attributes or {}).items()),
                "plots": plots,
                "reward": reward(resolved.preference or {}) if user.preference or cohort.preference else DEFAULT,
                "control": control(resolved.control or {}) if user.control or cohort.control else DEFAULT,
                "arms": "all" if len(arms) == len(offered) else ", ".join(arms),
            }
        )
    return rows


def reward(weights: Mapping[str, float]) -> str:
    """Weights as the sum that they make.

    >>> reward({"yield": 200, "leaching": -3, "water": -1.5, "colour": 0, "taste": 1})
    '200 × yield − 3 × leaching − 1.5 × water + taste'
    """
    text = ""
    for metric, weight in weights.items():
        if weight:
            sign = ("−" if weight < 0 else "") if not text else " − " if weight < 0 else " + "
            text += sign + (metric if abs(weight) == 1 else f"{number(abs(weight))} × {metric}")
    return text or "0"


def control(shares: str | Mapping[str, float]) -> str:
    """A control as text.

    >>> control({"practice": 0.7, "split": 0.3, "none": 0})
    '70 % practice, 30 % split'
    """
    if isinstance(shares, str):
        return shares
    return ", ".join(f"{number(100 * share)} % {arm}" for arm, share in shares.items() if share)


# Decisions and changes


@routes.page("/trials/{trial}/log", READ)
async def log(visit: Visit) -> Response:
    """Decisions that fit a search, page by page."""
    if visit.query("show") == "changes":
        return await _changes(visit)
    if visit.query("decision"):
        return go(decision_address(visit))
    before = whole(visit.query("before"))
    user, plot, block = (visit.query(name).strip() for name in ("user", "plot", "block"))
    state = visit.query("state") if visit.query("state") in SEARCHES else ""
    wanted = Search(user, visit.query("arm"), state, plot, block)

    known, found = await visit.look(lambda ledger, known: (known, queries.search(ledger, known, wanted, before=before)))
    places = list(sheets.PLACES) if plot or block else sheets.places_of(found.items)
    return visit.page(
        "log.html", s=queries.status(known), tab="log", found=found, wanted=wanted, searches=SEARCHES, spec=known.spec,
        later=before is not None, places=places,
    )  # fmt: skip


async def _changes(visit: Visit) -> Response:
    before = whole(visit.query("before"))

    def look(ledger: Ledger, state: TrialState) -> tuple[Status, list[Event]]:
        until = min(state.seq, before - 1) if before else state.seq
        events = ledger.events(until=until, kinds=CHANGES, limit=MOST_CHANGES + 1, newest_first=True)
        return queries.status(state), list(events)

    status, events = await visit.look(look)
    more = events[MOST_CHANGES - 1].seq if len(events) > MOST_CHANGES else None
    rows = [(event, _change(event)) for event in events[:MOST_CHANGES]]
    return visit.page("changes.html", s=status, tab="log", rows=rows, more=more)


def _change(event: Event) -> str:
    """The change by an event other than a decision or an outcome."""
    body, user = event.body, event.user
    texts = {
        kinds.CREATED: "created",
        kinds.EPISODE: f"season {body.get('name') or body.get('episode')} opened",
        kinds.AMENDMENT: f"outcome of decision {event.decision} corrected",
        kinds.MISSING: f"outcome of decision {event.decision} marked as missing",
        kinds.GIVEN: f"decision {event.decision}: {body.get('given')} was given",
        kinds.USER: f"user {user} added",
        kinds.PREFERENCE: f"preference of {user} changed to {reward(body.get('preference') or {})}",
        kinds.CONTROL: f"control of {user} changed to {control(body.get('control') or {})}",
        kinds.ARM: f"arm {body.get('arm')} added",
        kinds.RETIRED: f"arm {body.get('arm')} retired",
        kinds.HISTORY: "history read",
        kinds.LOOK: "a look at the stopping rules",
        kinds.FORECAST: "a forecast of how much longer it takes",
        kinds.RULES: "stopping rules changed",
        kinds.REVEALED: f"code opened for {f'decision {n}' if (n := body.get('decision')) else 'all decisions'}",
    }
    return texts.get(event.kind, event.kind)


def decision_number(visit: Visit) -> int:
    """The decision that the address names."""
    text = str(visit.request.path_params["decision"])
    wanted = whole(text)
    if wanted is None:
        raise Refusal(404, "unknown", f"expected the number of a decision, got {text[:50]!r}")
    return wanted


def decision_address(visit: Visit) -> str:
    """The page of the decision that the query names."""
    return f"/trials/{visit.trial}/decisions/{quote(visit.query('decision').strip(), safe='')}"


@routes.page("/trials/{trial}/decisions/{decision}", ANY)
async def decision_page(visit: Visit, errors: FormErrors = NO_ERRORS, *, saw: str = "", status: int = 200) -> Response:
    """The page of a decision; `saw` is the outcome that the sent form showed, empty: the present one."""
    wanted = decision_number(visit)

    def look(ledger: Ledger, state: TrialState) -> dict[str, Any]:
        found, events = queries.decision(ledger, state, wanted), queries.history(ledger, state, wanted)
        now = queries.status(state)
        if visit.blinded:
            found = blinding.blinded_decision(state, found)
            events = blinding.blinded_history(events, visit.caller.actor)
            return {"s": blinding.blinded_status(now), **_recorded(state, found, events, saw)}
        told = possible_arms(state, found)
        return {
            "s": now,
            "first": events[0],
            "openings": [o for o in queries.openings(ledger, state) if o.decision in (None, wanted)],
            "why_words": explain(ledger, state, found),
            "reward_unit": state.spec.reward.unit,
            **_recorded(state, found, events[1:], saw),
            **_charts(state, told, set(arms_without_outcomes(ledger, state, told))),
        }

    context = await visit.look(look)
    if visit.blinded:
        return visit.page("decision_blinded.html", status, tab="tell", errors=errors, **context)
    analyses = visit.service.analyses  # only the first analysis is waited for
    patience = PATIENCE if analyses.newest(visit.trial) is None else 0.0
    analysed = await analyses.get(visit.trial, context["s"].hash, patience, needed=False)
    checks = None if analysed is None or analysed.analysis is None else analysed.analysis.checks
    withdrawn = None if checks is None or checks.withdrawn is None else no_promise(checks.withdrawn)
    return visit.page("decision.html", status, tab="log", errors=errors, no_promise=withdrawn, **context)


def _recorded(state: TrialState, d: Decision, events: Sequence[Event], saw: str) -> dict[str, Any]:
    """A decision, its user's group and attributes, and its outcome."""
    spec, profile = state.spec, state.profile(d.user)
    beside = spec.feedback == "difference"
    parts = {"outcome": d.outcome, "control": d.control if beside else None}
    units = {name: metric.unit for name, metric in spec.metrics.items()}
    now = {
        part: values and {m: values.get(m) for m in spec.metrics} | {k: v for k, v in values.items() if k not in units}
        for part, values in parts.items()
    }
    group: list[tuple[str, float | str]] = [] if profile.group is None else [("group", profile.group)]
    return {
        "d": d,
        "saw": saw or json.dumps(now),
        "events": [(event, _outcome_text(event, spec.metrics)) for event in events],
        "known_units": {name: field.unit for part in (spec.attributes, spec.context) for name, field in part.items()},
        "units": units,
        "metrics": spec.metrics,
        "measured": profile.measured,
        "plots": beside,
        "arms": [*state.problem.arms, OTHER] if d.arm else [],  # a blinded reader gets none
        "about": group + list((profile.definition.attributes or {}).items()),
    }


def _charts(state: TrialState, d: Decision, untested: set[str]) -> dict[str, Any]:
    """The probabilities of the arms, and their effects as estimated at that moment."""
    confidence, seasons = state.spec.confidence, seasons_before(state, d.user, d.episode)
    largest = state.problem.largest_effect(state.profile(d.user).preference)
    estimated = {arm: e for arm, e in (d.effects or {}).items() if not e.is_control}
    controls = set(d.effects or {}) - set(estimated)
    unknown = [arm for arm in d.probabilities if arm not in controls and (arm in untested or arm not in estimated)]
    rows = [
        charts.EffectRow(
            arm,
            Effect(d.user, arm, "reward", e.estimate, e.low, e.high, e.low, e.high, seasons=seasons.get(arm)),
            strong=arm == d.arm,
            single=True,
        )
        for arm, e in estimated.items()
        if arm not in unknown
    ]
    anytime = confidence == "anytime"
    level = "range for all decisions at once" if anytime else f"{both_ends(float(confidence))} range"
    title = "Estimated effect of each arm against this user's control"
    return {
        "level": level,
        "unknown": [] if d.effects is None else unknown,
        "probabilities": charts.probabilities(d.probabilities, d.arm),
        "effects": charts.forest(
            "then-chart",
            title,
            rows,
            on="reward",
            unit=state.spec.reward.unit,
            promise=level.removesuffix(" range"),
            largest=largest,
        ),
    }


def _outcome_text(event: Event, metrics: Mapping[str, Metric]) -> str:
    """An event's record of a decision's outcome."""
    body = event.body
    if event.kind == kinds.GIVEN:
        return f"given: {body.get('package') or body.get('given') or 'not the package of this decision'}"
    if event.kind == kinds.MISSING:
        return "the rest of the outcome is missing" if body.get("was") else "the outcome is missing"
    recorded, was = body["outcome"], body.get("was") or {"metrics": {}, "control": None}
    parts = []
    for part, prefix in (("metrics", ""), ("control", control_plot(""))):
        new, old = recorded[part] or {}, was[part] or {}
        for name, metric in metrics.items():
            was_text, is_text = (outcome_text(name, metric, part) for part in (old, new))
            values = list(filter(None, [was_text, is_text]))
            unit = f" {metric.unit}" if metric.unit else ""
            taken_back = "" if is_text else " taken back"
            if was_text != is_text:
                parts.append(f"{prefix}{name} {' → '.join(values)}{unit}{taken_back}")
    return ("corrected: " if event.kind == kinds.AMENDMENT else "recorded: ") + ", ".join(parts)
