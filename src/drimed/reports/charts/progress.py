"""Charts of a trial's progress: benefit, evidence of drift, allocation, looks, variance components and levels.

Shapes: L episodes, K arms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from drimed.formatting import ENDLESS, NOT_KNOWN, amount, counted, known, measured, short, span
from drimed.numerics.arrays import IntArray
from drimed.records import Claim, Look
from drimed.reports.analysis import AT_THIS_LOOK, GUARANTEED, Analysis
from drimed.reports.charts import svg
from drimed.reports.charts.svg import Chart, Key, Panel, RangeRow, Series, Table
from drimed.reports.stopping import StoppingHistory, then_of, until
from drimed.reports.variation import Component, Level
from drimed.reports.wording import Words, describe_component, unidentified
from drimed.trial.seasons import Calendar, calendar

MOST_POINTS = 150  # episodes or looks that are drawn and listed; of more, every so many
REACH = 3.0  # lengths of a line beyond which a wide band is cut off
LEAST_EVIDENCE = -10.0  # drawn; it may be minus infinity
MOST_BARS = 60  # episodes beyond which neighbours are put together
MOST_COLUMNS = 40  # episodes of the chart of users: the last ones
MOST_LOOKS = 12  # charts of stopping rules
UNTOLD = "cannot be told yet"
LIKELY = "likely range (95 %)"


def reward(a: Analysis) -> Chart | None:
    """The reward of the arms given, minus the control's."""
    b, called = a.benefit, calendar(a.data.state)
    if not np.isfinite(a.data.reward).any():
        return None
    at = svg.thinned(len(b.episode), MOST_POINTS)
    labels = [called.label(i + 1) for i in at]
    gain, allowed, low, high = (part[at].tolist() for part in (b.gain, b.allowed, b.gain_low, b.gain_high))
    promise, unit = a.promise_of_sums, a.data.state.spec.reward.unit
    in_unit = f", in {unit}" if unit else ""
    ends = svg.window([0.0, *gain, *allowed], [v for v in (*low, *high) if abs(v) < ENDLESS], REACH)
    tips = [
        f"{called.word} {labels[i]}: {amount(gain[i], unit)} ({promise} {span(low[i], high[i])}); the tolerance allows "
        f"{short(allowed[i])}"
        for i in range(len(at))
    ]
    panel = Panel([Series(gain, low, high), Series(gain, dots=True), Series(allowed, line="allowed")], labels, tips)
    table = Table(
        f"Expected reward of the arms given against the control's, added up to the end of each {called.word}{in_unit}",
        [called.word, "reward minus control's", f"{promise} from", f"{promise} to", "tolerance allows"],
        [[labels[i], *(known(part[i]) for part in (gain, low, high, allowed))] for i in range(len(at))],
    )
    judged = "the guarantee does not hold, because the model is wrong" if a.checks.withdrawn else b.verdict
    text = (
        f"After {called.word} {labels[-1]}: {amount(gain[-1], unit)} against the control's reward, {promise} "
        f"{span(low[-1], high[-1])}. The tolerance allows {amount(allowed[-1], unit)}: {judged}."
    )
    if min(low) < ends[0] or max(high) > ends[1]:
        text += " This range extends beyond the chart; the table has it in full."
    bands = {GUARANTEED: "guaranteed at all times", AT_THIS_LOOK: "range at this look (95 %)"}
    keys = [Key("reward minus control's", "key-gain"), Key(bands.get(promise, f"{promise} range"), "key-band")]
    keys.append(Key("the tolerance allows", "key-allowed"))
    title = f"Reward so far, added up over all decisions, against what the control would have earned{in_unit}"
    return svg.chart("reward-chart", title, text, svg.lines([panel], ends, called.word), table, keys)


def evidence(a: Analysis) -> Chart | None:
    """The evidence that effects have moved, with the level of an alarm."""
    drift, called = a.checks.mean, calendar(a.data.state)
    if drift is None:
        return None
    at = svg.thinned(len(drift.evidence), MOST_POINTS)
    labels = [called.label(i + 1) for i in at]
    values = [float(v) for v in drift.evidence[at]]
    texts = [short(v) if math.isfinite(v) else "none" for v in values]
    drawn, alarm = np.maximum(values, LEAST_EVIDENCE).tolist(), math.log(1 / drift.alpha)
    tips = [
        f"{called.word} {name}: log evidence {v}; alarm at {short(alarm)}"
        for name, v in zip(labels, texts, strict=True)
    ]
    panel = Panel([Series(drawn)], labels, tips, levels=[alarm])
    rows = [[name, v, short(alarm)] for name, v in zip(labels, texts, strict=True)]
    table = Table("Evidence that the effects moved", [called.word, "log evidence", "alarm at"], rows)
    text = f"Log evidence that effects have moved: {texts[-1]} after {called.word} {labels[-1]}; "
    text += f"an alarm is raised at {short(alarm)}."
    if min(values) < LEAST_EVIDENCE:
        text += f" Values below {short(LEAST_EVIDENCE)} are drawn at {short(LEAST_EVIDENCE)}."
    draw = svg.lines([panel], svg.spread([*drawn, alarm, 0.0]), called.word, height=140.0)
    keys = [Key("evidence", "key-gain"), Key("alarm", "key-allowed")]
    return svg.chart("evidence-chart", "Evidence that the effects themselves moved", text, draw, table, keys)


def by_arm(a: Analysis) -> Chart | None:
    """Shares of the arms, season by season."""
    counts, arms, called = a.benefit.allocation, a.data.state.problem.arms, calendar(a.data.state)
    if not counts.sum():
        return None
    together = -(-len(counts) // MOST_BARS)
    firsts = list(range(0, len(counts), together))
    sums = np.add.reduceat(counts, firsts, axis=0)
    ends = [(called.label(f + 1), called.label(min(f + together, len(counts)))) for f in firsts]
    names = [first if first == last else f"{first} to {last}" for first, last in ends]
    stacked, keys = _stacked(sums, arms)

    def tip(_: int, c: int, s: int) -> str:
        n, total = int(stacked[c, s]), int(sums[c].sum())
        return f"{called.word} {names[c]}, {keys[s].name}: {100 * n / total:.0f} % ({n} of {total})"

    given = np.flatnonzero(counts.sum(0))
    began = [[called.dates.get(f + 1, "")] if called.dates else [] for f in firsts]
    rows = [[names[i], *began[i], *(str(int(n)) for n in row[given])] for i, row in enumerate(sums)]
    never = len(arms) - len(given)
    rest = f"; {counted(never, 'arm')} {'was' if never == 1 else 'were'} never given" if never else ""
    columns = [called.word, *(["began on"] if called.dates else []), *(arms[k] for k in given)]
    table = Table(f"Decisions by {called.word} and arm{rest}", columns, rows)
    best = int(sums[-1].argmax())
    most = f"{100 * sums[-1, best] / max(1, int(sums[-1].sum())):.0f} % {arms[best]}"
    text = f"Share of decisions by arm in each {called.word}. In {called.word} {names[-1]}: {most}."
    draw = svg.shares(stacked[None], [""], [first for first, _ in ends], tip, called.word)
    return svg.chart("allocation-chart", f"Share of decisions by arm and {called.word}", text, draw, table, keys)


def by_user(a: Analysis, users: Sequence[str]) -> Chart | None:
    """The arms of each of these users in each season."""
    data, L, called = a.data, a.data.state.episode.number, calendar(a.data.state)
    if not len(data.arm) or not users:
        return None
    arms = data.state.problem.arms
    first = max(0, L - MOST_COLUMNS)  # earlier episodes are not shown
    all_users = list(data.state.users)
    place = np.full(len(all_users), -1)
    place[[all_users.index(name) for name in users]] = np.arange(len(users))
    counts = np.zeros((len(users), L - first, len(arms)), np.intp)
    at = (place[data.user] >= 0) & (data.episode > first)
    np.add.at(counts, (place[data.user[at]], data.episode[at] - 1 - first, data.arm[at]), 1)
    names = [called.label(e) for e in range(first + 1, L + 1)]
    stacked, keys = _stacked(counts.reshape(-1, len(arms)), arms)

    def arms_of(n: IntArray) -> str:
        return ", ".join(f"{arms[k]} × {n[k]}" if n[k] > 1 else arms[k] for k in np.flatnonzero(n))

    rows = [[user, *map(arms_of, counts[h])] for h, user in enumerate(users)]
    table = Table(f"Arms of each user, by {called.word}", ["user", *names], rows)
    cut = f" Only the last {MOST_COLUMNS} of {L} {called.word}s are shown." if first else ""
    text = f"Arms of {counted(len(users), 'user')} in each {called.word}; each colour is an arm.{cut}"

    def tip(r: int, c: int, _: int) -> str:
        return f"{users[r]}, {called.word} {names[c]}: {arms_of(counts[r, c])}"

    draw = svg.shares(stacked.reshape(len(users), L - first, -1), users, names, tip, called.word)
    return svg.chart("allocation-chart", f"Arms of each user in each {called.word}", text, draw, table, keys)


def _stacked(counts: IntArray, arms: Sequence[str]) -> tuple[IntArray, list[Key]]:
    """Series (..., S) of the arms given most, in the order of the file, and one of all others."""
    total = counts.sum(0)
    order = [int(k) for k in np.argsort(-total, kind="stable") if total[k]]
    own, others = sorted(order[: svg.MOST_LOOKS]), order[svg.MOST_LOOKS :]
    keys = [Key(arms[k], svg.swatch(i), i) for i, k in enumerate(own)]
    if not others:
        return counts[:, own], keys
    keys.append(Key(counted(len(others), "other arm"), svg.OTHER, len(own)))
    return np.concatenate([counts[:, own], counts[:, others].sum(-1, keepdims=True)], -1), keys


def probabilities(chances: Mapping[str, float], chosen: str) -> Chart:
    """The probability of each arm in one decision, and the arm that was drawn."""
    rows = [
        RangeRow(arm, f"{100 * p:.1f} %{' · given' if arm == chosen else ''}", f"{arm}: {100 * p:.2f} %",
                 thick=(0.0, p), strong=arm == chosen)
        for arm, p in chances.items()
    ]  # fmt: skip
    listed = [[arm, f"{100 * p:.2f} %", "yes" if arm == chosen else ""] for arm, p in chances.items()]
    text = ", ".join(f"{arm} {100 * p:.1f} %" for arm, p in chances.items()) + f"; {chosen} was given."
    table = Table("The probability of each arm", ["arm", "probability", "given"], listed)
    draw = svg.ranges(rows, (0.0, 1.0), "probability")
    return svg.chart("probability-chart", "Probability of each arm", text, draw, table)


def rule_charts(history: StoppingHistory) -> list[Chart]:
    """One for each arm of each rule, as long as there are not too many."""
    points: dict[tuple[str, str, str], list[tuple[Look, Claim]]] = {}
    for look in history.looks:
        for claim in look.claims:
            points.setdefault((claim.rule, claim.who, claim.arm), []).append((look, claim))
    charts: list[Chart] = []
    for (rule, _, _), one in points.items():
        view, metric = history.state.looked.scopes.get(rule), history.state.spec.metrics.get(one[-1][1].on)
        if view is not None and len(charts) < MOST_LOOKS:
            unit = history.state.spec.reward.unit if metric is None else metric.unit
            id, then = f"stopping-chart-{len(charts) + 1}", then_of(history.state.spec, rule)
            chart = _looks(id, one, view.better, unit, calendar(history.state), then)
            charts += [] if chart is None else [chart]
    return charts


def _looks(
    id: str, points: Sequence[tuple[Look, Claim]], better: str, unit: str, called: Calendar, then: str
) -> Chart | None:
    """The range of one arm at each look; None while no range is known."""
    points = [points[i] for i in svg.thinned(len(points), MOST_POINTS)]
    ends = [(c.low, c.high) if c.low is not None and c.high is not None else None for _, c in points]
    shown = [e for e in ends if e is not None]
    if not shown:
        return None
    last, lines = points[-1][1], margins(points[-1][1], better)
    low, high = ([0.0 if e is None else e[i] for e in ends] for i in (0, 1))
    middles = [None if e is None else (e[0] + e[1]) / 2 for e in ends]
    met = [m if c.met else None for m, (_, c) in zip(middles, points, strict=True)]
    open_ = [None if c.met else m for m, (_, c) in zip(middles, points, strict=True)]
    series = [Series(open_, low, high, dots=True), Series(met, low, high, dots=True, bar="met-line")]
    tips = [
        f"look {i + 1}, {called.said(look.episode)}: {describe_claim(c, unit, then)}"
        for i, (look, c) in enumerate(points)
    ]
    panel = Panel(series, [str(i + 1) for i in range(len(points))], tips, levels=lines)
    bounds = svg.window([0.0, *lines, *shown[-1]], [v for e in shown for v in e], 1.0)
    table = Table(
        f"Looks at {last.rule}, {last.arm}, {last.who}: effect on {measured(last.on, unit)}",
        ["look", called.word, "decisions", "from", "to", "margin", f"to go until {until(last.kind, then)}", "met"],
        [
            [
                str(i + 1),
                called.label(look.episode),
                str(look.decisions),
                *(NOT_KNOWN if v is None else short(v) for v in (c.low, c.high)),
                short(c.margin),
                NOT_KNOWN if c.distance is None else short(max(c.distance, 0.0)),
                "yes" if c.met else c.waits or "no",
            ]
            for i, (look, c) in enumerate(points)
        ],
    )
    keys = [Key(f"effect on {measured(last.on, unit)}", "key-level"), Key("margin", "key-allowed")]
    keys += [Key("the rule is met", "key-met")] if any(m is not None for m in met) else []
    text = f"At the last look: {describe_claim(last, unit, then)}."
    draw = svg.lines([panel], bounds, "look", height=180.0)
    return svg.chart(id, f"{last.rule}: {last.arm}, {last.who}", text, draw, table, keys)


def margins(claim: Claim, better: str) -> list[float]:
    """The lines that an end of the range must pass."""
    up = 1.0 if better == "higher" else -1.0
    signs = {"superiority": [1], "non_inferiority": [-1], "equivalence": [-1, 1], "futility": [1], "harm": [-1]}
    return [up * sign * claim.margin for sign in signs[claim.kind]]


def describe_claim(claim: Claim, unit: str, then: str = "advise") -> str:
    """A range and its distance from what the rule asks for; `then` is the rule's consequence."""
    if claim.low is None or claim.high is None:
        return "nothing is known yet"
    if claim.met:
        away = "the rule is met"
    elif claim.waits:
        away = claim.waits
    elif claim.distance is None or claim.distance < 0:
        away = "other arms are not known yet"
    else:
        away = f"{amount(claim.distance, unit)} to go until {until(claim.kind, then)}"
    whole = " for all arms together" if claim.all_arms and claim.distance is not None else ""
    return f"{short(claim.low)} to {amount(claim.high, unit)}, {away}{whole}"


def components(all_components: Sequence[Component], words: Words, metric: str, unit: str, id: str) -> Chart | None:
    """Variance components of a metric, the largest first."""

    def order(c: Component) -> tuple[bool, bool, float]:
        return not c.identifiable, c.low == 0, -c.deviation if c.low > 0 else -c.high

    mine = sorted((c for c in all_components if c.metric == metric), key=order)
    if not mine:
        return None
    rows, listed = [], []
    for c in mine:
        label, clear = words.component(c.family), c.identifiable and c.low > 0
        value = UNTOLD if not c.identifiable else f"at most {short(c.high)}"
        value = f"{short(c.deviation)} ({span(c.low, c.high)})" if clear else value
        ends = (c.low, c.high) if c.identifiable else None
        rows.append(RangeRow(label, value, f"{label}: {value}", c.deviation if clear else None, thick=ends))
        numbers = [short(c.deviation) if clear else "", short(c.low), short(c.high)]
        listed.append([label, *(numbers if c.identifiable else [""] * 3), "" if c.identifiable else UNTOLD])
    largest = 2.5 * max((c.deviation for c in mine if c.identifiable and c.low > 0), default=math.inf)
    axis_end = 1.05 * min(max(c.high for c in mine), largest)
    table = Table(f"How much {measured(metric, unit)} varies", ["what", "about", "from", "to", "known"], listed)
    parts = [describe_component(c, words, unit) for c in mine if c.identifiable][:3]
    text = f"{metric}: {'; '.join(filter(None, [*parts, unidentified(mine, words)]))}."
    draw = svg.ranges(rows, (0.0, axis_end), measured(metric, unit))
    title = f"What varies, and how much: {metric}"
    return svg.chart(id, title, text, draw, table, [Key(LIKELY, "key-level")])


def site_levels(levels: Sequence[Level], words: Words, metric: str, unit: str, id: str) -> Chart | None:
    """The mean outcome at each site under the control."""
    mine = [v for v in levels if v.metric == metric]
    if not mine:
        return None
    scope = f"{words.scope}{words.typical_context}"
    rows = []
    for v in mine:
        value = f"{short(v.estimate)} ({span(v.low, v.high)})"
        note = counted(v.outcomes, "outcome")
        rows.append(RangeRow(v.name, value, f"{v.name}: {value}", v.estimate, thick=(v.low, v.high), note=note))
    title = f"Levels of {words.group}s: {metric} under the control{words.scope}"
    caption = f"{measured(metric, unit)} at each {words.group} under its control{scope}"
    text = f"Expected {metric} under the control{scope}: {_extremes(mine, unit, lambda v: f'at {v.name}')}."
    draw = svg.ranges(rows, svg.spread([end for v in mine for end in (v.low, v.high)]), measured(metric, unit))
    table = _level_table(caption, words.group, metric, mine)
    return svg.chart(id, title, text, draw, table, [Key(LIKELY, "key-level")])


def season_levels(levels: Sequence[Level], words: Words, metric: str, unit: str, id: str) -> Chart | None:
    """The mean outcome in each season under the control."""
    mine = [v for v in levels if v.metric == metric]
    if len(mine) < 2:
        return None
    shown = [mine[i] for i in svg.thinned(len(mine), MOST_POINTS)]
    tips = [f"season {v.name}: {amount(v.estimate, unit)} ({span(v.low, v.high)})" for v in shown]
    series = Series([v.estimate for v in shown], [v.low for v in shown], [v.high for v in shown], dots=True)
    panel = Panel([series], [v.name for v in shown], tips)
    where = f"in each season{words.own_context} under the control, averaged over all {words.users}"
    text = f"Expected {metric} {where}: {_extremes(mine, unit, lambda v: f'in season {v.name}')}."
    ends = svg.spread([end for v in shown for end in (v.low, v.high)])
    table = _level_table(f"{measured(metric, unit)} {where}", "season", metric, shown)
    draw = svg.lines([panel], ends, f"season; {measured(metric, unit)}")
    title = f"Levels of seasons: {metric} under the control"
    return svg.chart(id, title, text, draw, table, [Key(LIKELY, "key-level")])


def _level_table(caption: str, noun: str, metric: str, levels: Sequence[Level]) -> Table:
    rows = [[v.name, f"{v.outcomes:,}", *(short(e) for e in (v.estimate, v.low, v.high))] for v in levels]
    return Table(caption, [noun, "outcomes", metric, "from", "to"], rows)


def _extremes(levels: Sequence[Level], unit: str, where: Callable[[Level], str]) -> str:
    least, most = (pick(levels, key=lambda v: v.estimate) for pick in (min, max))
    return f"from {amount(least.estimate, unit)} {where(least)} to {amount(most.estimate, unit)} {where(most)}"
