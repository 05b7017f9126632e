"""The overview page, and the report: the same page frozen into one file, and its tables as CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache, partial
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any

from drimed.errors import InputError, MissingExtraError
from drimed.findings import over_time as past
from drimed.findings import worse_off
from drimed.findings.analyse import Analysis, analyse, assumptions, sentences, units
from drimed.findings.charts import allocation, course, covariates, over_time, stopping, varying
from drimed.findings.charts.forest import Better, Row, forest
from drimed.findings.charts.svg import Chart
from drimed.findings.dictionary import meanings
from drimed.findings.effects import EVERYBODY, MODEL, Recommendation, better, groups
from drimed.findings.stopping import story
from drimed.findings.undecided import NOTHING_YET, undecided
from drimed.findings.upcoming import upcoming
from drimed.findings.varying import Varying
from drimed.formatting import amount, counted, measured, moment, percent, short, span
from drimed.learning.field.contrasts import ALPHA, Known
from drimed.outputs import replacing
from drimed.records import Effect
from drimed.trial.model_free import EXACT, PROPENSITIES, REWARD
from drimed.trial.seasons import calendar
from drimed.trial.tables.writing import sheet
from drimed.trial.trial import Trial

try:
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
except ImportError as error:
    raise MissingExtraError("jinja2", "trial") from error

GROUPED = "all users and groups"
SOURCES = (MODEL, PROPENSITIES, EXACT)  # of effects, in the order in which they are shown
MOST_USERS = 1000  # in the tables of the page; the CSV files have all
MOST_ROWS = 40  # of a chart with groups; with more, all users together are shown


@dataclass(frozen=True)
class View:
    """What of an analysis is shown."""

    who: str  # whose effects: a user, a group, EVERYBODY or GROUPED
    on: Sequence[str]  # effects on what: one chart each
    users: Sequence[str]  # in tables
    by_user: bool = False  # what each user was given, instead of the shares of the arms


def shown(a: Analysis, view: View) -> dict[str, Any]:
    """Everything that the template `findings.html` needs, but for what a live page adds."""
    some, called, unit = set(view.users), calendar(a.seen.state), units(a.seen.state)
    return {
        "called": called,
        "a": a,
        "summary": sentences(a),
        "assumptions": [*assumptions(a.checks, a.seen.state), ("With and without the model", a.agreement.says)],
        "level": _level(a),
        "withdrawn": a.checks.withdrawn,
        "effects": [c for i, on in enumerate(view.on) if (c := _effects(a, view.who, on, i)) is not None],
        "undecided": undecided(a),
        "recommendations": [r for r in a.recommendations if r.user in some] if _known(a) else [],
        "nothing_yet": NOTHING_YET if all(r.alone for r in a.recommendations) else "",
        "over_time": [c for on in view.on[:1] if (c := over_time.over_time(a, on, unit[on])) is not None],
        "reward": course.reward(a),
        "worse_off": worse_off.worse_off(a, some) if len(a.seen.state.users) > 1 else [],
        "worse_off_words": worse_off.said(a),
        "in_unit": f", in {unit[REWARD]}" if unit[REWARD] else "",
        "by_user": view.by_user,
        "allocation": allocation.by_user(a, view.users) if view.by_user else allocation.by_arm(a),
        "drift": [c for c in (course.evidence(a),) if c is not None],
        "foreseen": True,
        "upcoming": upcoming([d for d in a.next if d.user in some], a.seen.state.problem.arms),
        "promise": a.promise,
        "promise_of_sums": a.promise_of_sums,
        "exact": any(x.source == EXACT for x in a.effects),
        **_varying(a, view),
        "stopping": a.stopping,
        "stopping_story": [] if a.stopping is None else story(a.stopping, withdrawn=bool(a.checks.withdrawn)),
        "stopping_charts": [] if a.stopping is None else stopping.of_rules(a.stopping),
    }


def environment(*packages: str) -> Environment:
    """The templates of this package, after those of others; everything is escaped."""
    loaders = [PackageLoader(package, "templates") for package in (*packages, "drimed.findings")]
    made = Environment(
        loader=ChoiceLoader(loaders), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters |= {"short": short, "moment": moment, "percent": percent}
    made.globals |= {"counted": counted, "amount": amount, "span": span}
    return made


@cache
def style() -> str:
    """The style sheet."""
    return resources.files("drimed.findings").joinpath("static", "pages.css").read_text(encoding="utf-8")


def write_report(trial: Trial, out: Path, *, suffix: str = ".csv", force: bool = False) -> Path:
    """Everything about a trial, into a folder, with tables as sheets (.csv or .xlsx); returns the page."""
    analysis = analyse(trial)
    tables: dict[str, Sequence[Mapping[str, Any]]] = {
        "effects": [_sourced(analysis, x) for x in analysis.effects],
        "recommendations": [_flat(r) for r in analysis.recommendations],
        "allocation": _allocation(analysis),
        "over_time": past.rows(analysis.past, calendar(analysis.seen.state)),
    }
    if (found := analysis.varying) is not None:
        tables["varies"] = [asdict(v) for v in found.varies]
        tables["levels"] = [
            {"of": of} | asdict(v) for of, part in (("site", found.sites), ("season", found.seasons)) for v in part
        ]
        tables["covariates"] = [row for line in found.lines for row in line.rows()]
    files = {name + suffix: sheet(rows, suffix, meanings=partial(meanings, name)) for name, rows in tables.items()}
    files["index.html"] = report(analysis).encode()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write to {out}: {error}") from None
    with ExitStack() as stack:  # all of them are in place, or none
        beside = {name: stack.enter_context(replacing(out / name, force=force)) for name in files}
        for name, data in files.items():
            beside[name].write_bytes(data)
    return out / "index.html"


def report(analysis: Analysis) -> str:
    """The page."""
    state = analysis.seen.state
    who = GROUPED if 1 < len(groups(state)) <= MOST_ROWS // len(state.problem.arms) else EVERYBODY
    measures = [REWARD, *(m for m in state.problem.metrics if m != REWARD)]
    view = View(who, measures, list(state.users)[:MOST_USERS])
    page = {
        "s": analysis.status,
        "live": False,
        "style": style(),
        "written": datetime.now(UTC).isoformat(),
        "version": version("drimed"),
        "left_out": max(0, len(state.users) - MOST_USERS),
    }
    return environment().get_template("report.html").render(page | shown(analysis, view))


def _varying(a: Analysis, view: View) -> dict[str, Any]:
    """What a model of the field has found besides the effects: charts, one for each metric, and words."""
    found, state = a.varying, a.seen.state
    if found is None:
        return {"field": None, "varies": [], "levels": [], "levels_title": "", "covariates": [], "by_site": None}
    metrics = [(m, state.spec.metrics[m].unit, i) for i, m in enumerate(state.problem.metrics)]
    levels = [chart(found, *metric) for metric in metrics for chart in (varying.sites, varying.seasons)]
    return {
        "field": found.words,
        "varies": [c for metric in metrics if (c := varying.components(found, *metric)) is not None],
        "levels": [c for c in levels if c is not None],
        "covariates": covariates.covariates(_marked(a, found), REWARD, state.spec.reward.unit),
        "by_site": _by_site(a, view),
        "levels_title": " and ".join(
            f"{noun}s" for noun, part in ((found.words.group, found.sites), (found.words.season, found.seasons)) if part
        ).capitalize(),
    }


def _marked(a: Analysis, found: Varying) -> Varying:
    """With the arms that are retired named so."""
    return replace(found, lines=[replace(line, arm=a.named(line.arm)) for line in found.lines])


def _by_site(a: Analysis, view: View) -> Chart | None:
    """The effects on the reward for each user, where they are not too many."""
    found, some = a.varying, set(view.users)
    mine = [x for x in a.own_effects if x.who in some and _shows(x)]
    if found is None or len(some) < 2 or len(mine) > MOST_ROWS:
        return None
    unit = a.seen.state.spec.reward.unit
    title = f"Effects on {measured(REWARD, unit)} against control: each {found.words.user}{found.words.scope}"
    rows = [_row(a, x, None, f"{x.who}: {x.arm}") for x in mine]
    return forest("site-effects-chart", title, rows, on=REWARD, unit=unit, promise=a.promise)


def _shows(effect: Effect) -> bool:
    """Whether there is something to draw: the control against itself has no effect, and before any data all is open."""
    return not effect.is_control and effect.is_known


def _known(a: Analysis) -> bool:
    """Whether outcomes have told anything about arms."""
    return bool(a.seen.told.any()) and all(x.is_known for x in a.own_effects)


def _row(a: Analysis, effect: Effect, good: Better | None, label: str) -> Row:
    stands, retired = a.checks.withdrawn is None, effect.arm in a.seen.state.retired
    if a.varying is None:
        return Row(label, effect, good, judged=stands, retired=retired)
    rests = a.varying.rests.get((effect.who, effect.arm)) if effect.on == REWARD and effect.source == MODEL else None
    note = "" if rests is None else rests.says
    return Row(label, effect, good, judged=stands and a.known(effect), note=note, retired=retired)


def _effects(a: Analysis, who: str, on: str, place: int) -> Chart | None:
    state = a.seen.state
    order = list(groups(state)) if who == GROUPED else [who]
    found = [x for x in a.effects if x.who in order and x.on == on and _shows(x)] if a.seen.told.any() else []
    found.sort(key=lambda x: (order.index(x.who), state.problem.arms.index(x.arm), SOURCES.index(x.source)))
    found, left_out = _main(a, found)
    metric = state.spec.metrics.get(on)
    good = None if metric is None or on == REWARD else better(state, on)
    unit = units(state)[on]
    rows = [_row(a, x, good, (f"{x.who}: " if who == GROUPED else "") + x.arm) for x in found]
    id = "effects-chart" if place == 0 else f"effects-chart-{place + 1}"
    scope = "" if a.varying is None else a.varying.words.scope
    title = f"Effects on {measured(on, unit)} against control: {who}{scope}{left_out}"
    return forest(id, title, rows, on=on, unit=unit, promise=a.promise)


def _main(a: Analysis, found: list[Effect]) -> tuple[list[Effect], str]:
    """Of many arms, those that were given most; and what to say about the others."""
    arms = list(dict.fromkeys(x.arm for x in found))
    if len(arms) <= allocation.MOST_ARMS:
        return found, ""
    times = dict(zip(a.seen.state.problem.arms, a.course.allocation.sum(0).tolist(), strict=True))
    some = {arm for arm in sorted(arms, key=lambda arm: -times[arm])[: allocation.MOST_ARMS] if times[arm]}
    said = f" ({len(some)} of {counted(len(arms), 'arm')}, those given most)"
    return [x for x in found if x.arm in some], said


def _level(a: Analysis) -> str:
    """At which confidence the guaranteed ranges hold, and when."""
    if a.checks.withdrawn:
        return "not here: see the first line of this page"
    if isinstance(a.fit, Known):
        return f"{100 * (1 - ALPHA):g} %, for each effect by itself"
    if a.fit.spread is not None:
        holds = "in each season"
    elif a.seen.state.spec.noise.kind == "learned":
        holds = "approximately, because the noise is estimated too"
    else:
        holds = "if the noise is as said"
    return f"{100 * (1 - a.seen.state.spec.delta):g} %, {holds}"


def _sourced(a: Analysis, effect: Effect) -> dict[str, Any]:
    """An effect, and how much of what is known about it comes from outcomes here; ends that are not known are empty."""
    plain = {name: "" if value is None else value for name, value in effect.plain().items()}
    if not effect.is_known:
        plain["estimate"] = ""
    plain["retired"] = effect.arm in a.seen.state.retired
    if a.varying is None:
        return plain
    rests = a.varying.rests.get((effect.who, effect.arm)) if effect.on == REWARD and effect.source == MODEL else None
    known = {"own_outcomes": ""} if rests is None else {"own_outcomes": rests.outcomes}
    return plain | known


def _flat(r: Recommendation) -> dict[str, Any]:
    e = r.effect
    found = {"effect_low": e.low, "effect_high": e.high, "likely_low": e.likely_low, "likely_high": e.likely_high}
    ends = {name: "" if end is None else end for name, end in found.items()}
    own = {"user": r.user, "arm": e.arm, "control": r.control, "effect": e.estimate}
    next_best = {"lead": "", "runner_up": ""} if r.alone else {"lead": r.lead, "runner_up": r.runner_up}
    return own | ends | next_best | {"p_best": r.p_best}


def _allocation(analysis: Analysis) -> list[dict[str, Any]]:
    arms, course, called = analysis.seen.state.problem.arms, analysis.course, calendar(analysis.seen.state)
    own = ("episode", "season", "date")
    return [
        {
            "episode": int(e),
            **{f"arm {arm}" if arm in own else arm: int(n) for arm, n in zip(arms, row, strict=True)},
            "season": called.names.get(int(e), ""),
            "date": called.dates.get(int(e), ""),
        }
        for e, row in zip(course.episode, course.allocation, strict=True)
    ]
