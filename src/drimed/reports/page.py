"""The overview page, and the report: the same page frozen into one file, with its tables as sheets."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from drimed.formatting import counted, measured
from drimed.models.mixed.effects import ALPHA, FittedModel
from drimed.records import Effect
from drimed.reports import charts as draw
from drimed.reports import wording
from drimed.reports.analysis import Analysis, analyse
from drimed.reports.assumption_checks import describe_checks
from drimed.reports.charts import EffectRow
from drimed.reports.effects import EVERYBODY, MODEL, Recommendation, groups
from drimed.reports.frame import PAGE, environment, style, text_of, write_files
from drimed.reports.svg import MOST_LOOKS, Chart
from drimed.reports.wording import Words
from drimed.trial.estimates import AS_GIVEN, EXACT, PROPENSITIES, REWARD
from drimed.trial.look_history import better_direction
from drimed.trial.seasons import calendar
from drimed.trial.tables import sheet
from drimed.trial.trial import Trial

GROUPED = "all users and groups"
SOURCES = (MODEL, PROPENSITIES, EXACT, AS_GIVEN)  # of effects, in the order in which they are shown
MOST_USERS = 1000  # in the tables of the page; the files beside it have all
DOSE_COLUMNS = ("who", "dose", "value", "estimate", "likely_low", "likely_high", "recorded", "p_best")
PAST_COLUMNS = ("arm", "on", "estimate", "likely_low", "likely_high")
PAGES: dict[str, tuple[str, tuple[str, ...]]] = {  # template -> title, and variables of which one must hold something
    "overview": ("Overview", ()),
    "effects": ("Effects", ()),
    "over-time": ("Effects over time", ("over_time",)),
    "outcomes": ("Outcomes by arm", ("outcomes",)),
    "best": ("Best arms", ("recommendations", "best_by_kind")),
    "covariates": ("Doses and covariates", ("doses", "covariates")),
    "variation": ("What varies", ("varies", "levels")),
    "stopping": ("Stopping", ("stopping",)),
    "worse": ("Was anybody worse off?", ("reward",)),
    "given": ("Who got what", ("allocation",)),
    "next": ("What is next", ("foreseen",)),
    "checks": ("Assumptions and data", ()),
}
MOST_ROWS = 40  # of a chart with groups; with more, all users together are shown


@dataclass(frozen=True)
class PageView:
    """The part of an analysis that is shown."""

    who: str  # a user, a group, EVERYBODY or GROUPED
    on: Sequence[str]  # measures: one chart of effects each
    users: Sequence[str]  # in tables
    foreseen: bool = True  # the next decisions too


def page_context(a: Analysis, view: PageView) -> dict[str, Any]:
    """The variables of the template `analysis.html`, and the names of its pages that have something to show."""
    state, words, unit = a.data.state, wording.words_of(a), wording.units(a.data.state)
    some, alike = a.own_rows.keys() & set(view.users), wording.people_alike(a)
    charts = {
        "effects": [_effects(a, words, view.who, on, i) for i, on in enumerate(view.on)],
        "over_time": [draw.over_time(a, on, unit[on]) for on in view.on[:1]],
        "varies": [],
        "levels": [],
    }
    if (variation := a.variation) is not None:
        for i, metric in enumerate(state.problem.metrics):
            of, n = (words, metric, unit[metric]), f"-{i + 1}" if i else ""
            charts["varies"].append(draw.components(variation.components, *of, f"varies-chart{n}"))
            limits = state.spec.metrics[metric].limits
            for levels, name in ((variation.sites, "sites"), (variation.seasons, "seasons")):
                part = draw.levels(levels, *of, f"{name}-chart{n}", seasons=name == "seasons", limits=limits)
                charts["levels"].append(part)
    variation_of = [words.group + "s"] * bool(variation and variation.sites)
    variation_of += ["seasons"] * bool(variation and variation.seasons)
    context = {
        **{name: [c for c in some_charts if c is not None] for name, some_charts in charts.items()},
        "a": a,
        "words": words,
        "called": calendar(state),
        "mixed": variation is not None,
        "withdrawn": a.checks.withdrawn,
        "in_unit": f", in {unit[REWARD]}" if unit[REWARD] else "",
        "levels_title": " and ".join(variation_of).capitalize(),
        "answers": wording.answers(a, words),
        "recorded": wording.recorded_by_arm(a),
        "adherence": wording.adherence_by_arm(a),
        "assumptions": [*describe_checks(a.checks, state), ("With and without the model", a.agreement.describe())],
        "outcomes": wording.outcomes_by_arm(a),
        "level": _level(a),
        "by_site": _by_site(a, words, some),
        "undecided": wording.undecided(a, words),
        "set_aside": wording.set_aside(a),
        "recommendations": [r for r in a.recommendations if r.user in some] if a.has_estimates() else [],
        "best_by_kind": wording.best_by_kind(a) if a.has_estimates() else None,
        "better_than_control": partial(wording.better_than_control, a),
        "nothing_yet": wording.NOTHING_YET if all(r.alone for r in a.recommendations) else "",
        "covariates": draw.covariates(a, unit[REWARD], words),
        "doses": draw.doses(a, unit[REWARD], words),
        "reward": draw.reward(a),
        "worse_off": [x for x in a.benefit.users if x.user in some] if len(state.users) > 1 else [],
        "worse_off_text": wording.describe_benefit(a, words),
        "allocation": draw.by_arm(a),
        "by_user": wording.arms_by_user(a, [user for user in view.users if user in some]),
        "foreseen": view.foreseen,
        "stopping": a.stopping,
        "exact": any(x.source == EXACT for x in a.effects),
        "standing": wording.standing(a, words),
        "upcoming": wording.upcoming(
            [d for d in a.next if d.user in some or d.user in alike], state.problem.arms, calendar(state).word, alike
        ),
        "stopping_charts": [] if a.stopping is None else draw.rule_charts(a.stopping),
    }
    pages = {page: title for page, (title, needs) in PAGES.items() if not needs or any(map(context.get, needs))}
    return context | {"pages": pages, "shown": list(pages)}


@cache
def table_columns() -> dict[str, dict[str, str]]:
    """The meanings of the columns of each table beside the page."""
    return tomllib.loads(text_of("columns.toml"))


def write_report(trial: Trial, out: Path, *, suffix: str = ".csv", force: bool = False) -> Path:
    """Write the page and its tables (.csv or .xlsx) into a folder; returns the page."""
    a = analyse(trial)
    tables = report_tables(a)
    files = {name + suffix: sheet(rows, suffix, meanings=partial(meanings, name)) for name, rows in tables.items()}
    files[PAGE] = report(a).encode()
    return write_files(out, files, force=force)


def report(a: Analysis) -> str:
    state = a.data.state
    who = GROUPED if 1 < len(groups(state)) <= MOST_ROWS // len(state.problem.arms) else EVERYBODY
    measures = [REWARD, *(m for m in state.problem.metrics if m != REWARD)]
    view = PageView(who, measures, list(a.own_rows)[:MOST_USERS])
    page = {
        "s": a.status,
        "live": False,
        "style": style(),
        "written": datetime.now(UTC).isoformat(),
        "version": version("drimed"),
        "left_out": max(0, len(a.own_rows) - MOST_USERS),
    }
    return environment().get_template("report.html").render(page | page_context(a, view))


def report_tables(a: Analysis) -> dict[str, list[Mapping[str, Any]]]:
    called = calendar(a.data.state)
    seasons = [
        {"episode": e, "season": called.names.get(e, ""), "date": called.dates.get(e, "")}
        for e in a.benefit.episode.tolist()
    ]
    tables: dict[str, list[Mapping[str, Any]]] = {
        "effects": [_effect_row(a, x) for x in a.effects],
        "recommendations": [_recommendation_row(r) for r in a.recommendations],
        "allocation": [
            season | {"arm": arm, "decisions": n}
            for season, row in zip(seasons, a.benefit.allocation.tolist(), strict=True)
            for arm, n in zip(a.data.state.problem.arms, row, strict=True)
        ],
    }
    tables["over_time"] = [
        {**seasons[episode - 1], **{name: getattr(x, name) for name in PAST_COLUMNS}}
        for episode, effects in a.past.items()
        for x in effects
    ]
    if (variation := a.variation) is not None:
        words = wording.words_of(a)
        tables["varies"] = [asdict(c) | {"text": words.component(c.family)} for c in variation.components]
        levels = (("site", variation.sites), ("season", variation.seasons))
        tables["levels"] = [{"of": of} | asdict(v) for of, part in levels for v in part]
        names = ("covariate", "arm", "on", "value", "estimate", "likely_low", "likely_high")
        tables["covariates"] = [
            dict(zip(names, (x.covariate, x.arm, x.on, *row), strict=True))
            for x in variation.covariates
            for row in zip(x.levels or x.values, x.estimate, x.low, x.high, strict=True)
        ]
        doses: list[Mapping[str, Any]] = [
            dict(zip(DOSE_COLUMNS, (x.who, x.dose, *row), strict=True))
            for x in variation.doses
            for row in zip(x.values, x.estimate, x.low, x.high, x.recorded, x.p_best, strict=True)
        ]
        tables |= {"doses": doses} if doses else {}
    return tables


def meanings(table: str, columns: Iterable[str]) -> dict[str, str]:
    return {name: table_columns()[table][name] for name in columns}


def _effect_row(a: Analysis, effect: Effect) -> dict[str, Any]:
    row = {name: "" if value is None else value for name, value in effect.plain().items()}
    if not effect.is_known:
        row["estimate"] = ""
    row["retired"] = effect.arm in a.data.state.retired
    if a.variation is not None:
        source = a.source(effect)
        row["own_outcomes"] = "" if source is None else source.here
    return row


def _recommendation_row(r: Recommendation) -> dict[str, Any]:
    e = r.effect
    ends = {"effect_low": e.low, "effect_high": e.high, "likely_low": e.likely_low, "likely_high": e.likely_high}
    row = {"user": r.user, "arm": e.arm, "control": r.control, "effect": e.estimate}
    row |= {name: "" if end is None else end for name, end in ends.items()}
    row |= {"lead": "", "runner_up": ""} if r.alone else {"lead": r.lead, "runner_up": r.runner_up}
    return row | {"p_best": r.p_best}


def _effects(a: Analysis, words: Words, who: str, on: str, place: int) -> Chart | None:
    """The effects on a measure for all users, a group or a user, or for all groups."""
    order, arms = list(groups(a.data.state)) if who == GROUPED else [who], a.data.state.problem.arms
    known = [x for x in a.effects if x.is_known and not x.is_control] if a.data.has_outcome.any() else []
    shown = [x for x in known if x.who in order and x.on == on]
    shown.sort(key=lambda x: (order.index(x.who), arms.index(x.arm), SOURCES.index(x.source)))
    return _forest(a, words, f"effects-chart-{place + 1}" if place else "effects-chart", shown, on, who, who == GROUPED)


def _by_site(a: Analysis, words: Words, some: Collection[str]) -> Chart | None:
    """The effects on the reward for each user, where they are not too many."""
    own = [x for x in a.own_effects if x.who in some and x.is_known and not x.is_control]
    if a.variation is None or len(some) < 2 or len(own) > MOST_ROWS:
        return None
    return _forest(a, words, "site-effects-chart", own, REWARD, f"each {words.user}", True)


def _forest(
    a: Analysis, words: Words, id: str, effects: Sequence[Effect], on: str, whom: str, named: bool
) -> Chart | None:
    """Effects on a measure; of many arms, those that were given most. `named`: each row says whom it is about."""
    state, unit = a.data.state, wording.units(a.data.state)[on]
    largest = wording.largest_effect(a, on)
    if wording.is_rate(a, on):  # as so many more in 100
        effects, unit, largest = [_in_100(x) for x in effects], "in 100", 100.0
    compared, left_out = list(dict.fromkeys(x.arm for x in effects)), ""
    if len(compared) > MOST_LOOKS:
        some = {arm for arm in sorted(compared, key=lambda arm: -a.times[arm])[:MOST_LOOKS] if a.times[arm]}
        left_out = f" ({len(some)} of {counted(len(compared), 'arm')}, those given most)"
        effects = [x for x in effects if x.arm in some]
    users = {user: state.profile(user).definition for user in state.users}
    better = None if on == REWARD else better_direction(state.spec, users, on)
    rows = []
    for x in effects:
        judged = a.checks.withdrawn is None and (a.variation is None or a.can_be_judged(x))
        label, note = f"{x.who}: {x.arm}" if named else x.arm, words.source(a.source(x))
        if a.deviations and x.source in (PROPENSITIES, AS_GIVEN):
            note = "by assignment, without the model" if x.source == PROPENSITIES else "as given, not randomised"
        judged, retired = (judged or x.source != MODEL) and x.source != AS_GIVEN, x.arm in state.retired
        rows.append(EffectRow(label, x, better, judged=judged, note=note, retired=retired))
    title = f"Effects on {measured(on, unit)} against control: {whom}{words.scope}{left_out}"
    return draw.forest(id, title, rows, on=on, unit=unit, promise=a.promise, largest=largest)


def _in_100(effect: Effect) -> Effect:
    """An effect on a rate, in per cent."""
    fields = ("estimate", "low", "high", "likely_low", "likely_high")
    ends = {name: value and 100 * value for name in fields if (value := getattr(effect, name)) is not None}
    return replace(effect, **ends)


def _level(a: Analysis) -> str:
    """The confidence of the long ranges, and its conditions."""
    if a.checks.withdrawn:
        return "not here: see the first line of this page"
    if isinstance(a.fit, FittedModel):
        return f"{100 * (1 - ALPHA):g} %, for each effect by itself"
    learned = a.data.state.spec.noise.kind == "learned"
    holds = "approximately, because the noise is estimated too" if learned else "if the noise is as said"
    holds = holds if a.fit.spread is None else "in each season"
    return f"{100 * (1 - a.data.state.spec.delta):g} %, {holds}"
