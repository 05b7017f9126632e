"""The pictures of a rehearsal: power by season, regret against power, allocation, harm by user.

Shapes: S trials, L seasons, K arms, U users.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup

from drimed.findings.charts import svg
from drimed.findings.charts.svg import Chart, Key, Panel, RangeRow, Scale, Series, Table, el
from drimed.formatting import measured as in_unit
from drimed.formatting import percent, short
from drimed.rehearsal.designs import OWN
from drimed.rehearsal.measures import (
    CALLED,
    LIKELY,
    PROPENSITIES,
    Measured,
    Number,
    first_claim,
    harm_by_user,
    power_by_season,
)
from drimed.rehearsal.record import Record

MOST_LINES = svg.SERIES
MOST_USERS = 40  # of the picture of harm: the worst ones
SURE = 2.0  # standard errors of a band


def power(records: Mapping[str, Record]) -> Chart | None:
    """The chance of a right claim after each season, by scenario."""
    shown = {name: r for name, r in records.items() if (r.meant > 0).any()}
    if not shown:
        return None
    shown = dict(list(shown.items())[:MOST_LINES])
    L = max(int(r.looks[-1]) + 1 for r in shown.values())
    found = {name: power_by_season(r, _claim(r)) for name, r in shown.items()}
    series = []
    for k, (name, numbers) in enumerate(found.items()):
        by_season = dict(zip(shown[name].looks.tolist(), numbers, strict=True))
        points = [by_season.get(t) for t in range(L)]
        low, high = ([0.0 if n is None else n.value + side * SURE * n.error for n in points] for side in (-1, 1))
        series.append(Series([None if n is None else n.value for n in points], low, high, line=f"l{k}", band=f"b{k}"))
    tips = [
        "; ".join([f"season {t + 1}", *(f"{n}: {percent(v[t].value)}" for n, v in found.items() if t < len(v))])
        for t in range(L)
    ]
    panel = Panel(series, [str(t + 1) for t in range(L)], tips, levels=[0.8])
    called = CALLED[_claim(next(iter(shown.values())))]
    rows = [[str(t + 1), *(_pm(v[t]) if t < len(v) else "" for v in found.values())] for t in range(L)]
    last = {name: v[-1] for name, v in found.items()}
    says = (
        f"Chance that a better arm is called better ({called}) by the end of each season; bands are two standard "
        f"errors of the simulation, the dashed line is 80 %. After season {L}: "
        + "; ".join(f"{name} {percent(n.value)}" for name, n in last.items()) + "."
    )  # fmt: skip
    keys = [Key(name, f"k{k}") for k, name in enumerate(found)]
    table = Table("Power by season, ± standard error", ["season", *found], rows)
    draw = svg.lines([panel], (0.0, 1.0), "season", number=percent)
    return svg.chart("power-chart", "Power against seasons", says, draw, table, keys)


def trade_off(measured: Mapping[str, Measured], unit: str = "") -> Chart | None:
    """Regret against power, one point for each design."""
    points = [
        (name, p, r)
        for name, m in measured.items()
        if (p := m[f"power, {first_claim(m)}"]) is not None and (r := m["regret against the best arm"]) is not None
    ]
    if len(points) < 2:
        return None
    what = in_unit("regret of a decision", unit)
    low, high = svg.spread([x for _, _, r in points for x in (r.value - r.error, r.value + r.error)], margin=0.15)
    top = min(1.0, max(0.1, 1.15 * max(p.value + SURE * p.error for _, p, _ in points)))

    def draw(width: int) -> tuple[float, list[Markup]]:
        left, right, bottom = 62.0, width - 14.0, 260.0
        x, y = Scale(0.0, top, left + 10, right), Scale(low, high, bottom, 22.0)
        made = []
        for t in svg.ticks(low, high):
            made += [svg.line(left, y(t), right, y(t), "grid"), svg.text(left - 8, y(t) + 4, short(t), anchor="end")]
        for t in svg.ticks(0.0, top):
            made.append(svg.text(x(t), bottom + 18, percent(t), anchor="middle"))
        made.append(svg.text(right, bottom + 36, "power", look="label", anchor="end"))
        made.append(svg.text(right, 10, f"{what}, upwards", look="label", anchor="end"))
        for k, (name, p, r) in enumerate(points):
            at = x(p.value), y(r.value)
            made.append(
                svg.line(
                    x(max(p.value - p.error, 0)), at[1], x(min(p.value + p.error, top)), at[1], f"l{k % MOST_LINES}"
                )
            )
            made.append(svg.line(at[0], y(r.value - r.error), at[0], y(r.value + r.error), f"l{k % MOST_LINES}"))
            tip = f"{name}: power {percent(p.value)}, regret {short(r.value)}"
            shape = {"r": 6.5 if name == OWN else 4.5, "class_": f"{svg.colour(k)} dot", "data_tip": tip}
            made.append(el("circle", cx=at[0], cy=at[1], **shape))
            made.append(svg.text(at[0], at[1] - 10, str(k + 1), anchor="middle", look="strong"))
        return 304.0, made

    keys = [Key(f"{k + 1} {name}", f"k{k % MOST_LINES}") for k, (name, _, _) in enumerate(points)]
    rows = [[name, _pm(p), f"{short(r.value)} ± {r.error:.1g}"] for name, p, r in points]
    says = (
        "Designs in the same simulated worlds: those further right find a better arm more often, those further down "
        "cost users less."
    )
    table = Table("Designs", ["design", "power", what], rows)
    return svg.chart("designs-chart", "Regret against power, by design", says, draw, table, keys)


def allocation(record: Record, arms: Sequence[str], scenario: str) -> Chart:
    """The mean share of each arm in each season, with the middle half of the trials."""
    q = np.nanquantile(record.shares, [0.25, 0.5, 0.75], axis=0)  # (3, L, K), of the trials that go on
    mean = np.nanmean(record.shares, 0)
    L, shown = q.shape[1], range(min(len(arms), MOST_LINES))
    series = [
        Series(mean[:, k].tolist(), q[0, :, k].tolist(), q[2, :, k].tolist(), line=f"l{k}", band=f"b{k}") for k in shown
    ]
    tips = [
        "; ".join([f"season {t + 1}", *(f"{a}: {percent(mean[t, k])}" for k, a in enumerate(arms))]) for t in range(L)
    ]
    rows = [
        [
            str(t + 1),
            *(f"{percent(mean[t, k])} ({percent(q[0, t, k])} to {percent(q[2, t, k])})" for k in range(len(arms))),
        ]
        for t in range(L)
    ]
    final = "; ".join(f"{a} {percent(mean[-1, k])}" for k, a in enumerate(arms))
    says = (
        f"Mean share of each arm, with the middle half of the trials in its band ({scenario}). In the last season: "
        f"{final}."
    )
    keys = [Key(a, f"k{k}") for k, a in enumerate(arms[:MOST_LINES])]
    table = Table("Share of decisions by season: mean, and the middle half of trials", ["season", *arms], rows)
    panel = Panel(series, [str(t + 1) for t in range(L)], tips)
    draw = svg.lines([panel], (0.0, 1.0), "season", number=percent)
    return svg.chart("allocation-chart", "Allocation over time", says, draw, table, keys)


def harm(record: Record, users: Sequence[str], scenario: str, unit: str = "") -> Chart:
    """Expected losses of each user against the control."""
    q, tolerated = harm_by_user(record)
    worst = np.argsort(-q[2])[:MOST_USERS].tolist()
    rows = [
        RangeRow(
            users[u],
            short(q[1, u]),
            f"{users[u]}: {short(q[1, u])}, 90 % of trials {short(q[0, u])} to {short(q[2, u])}; tolerated "
            f"{short(tolerated[u])}",
            estimate=float(q[1, u]),
            thick=(float(q[0, u]), float(q[2, u])),
            limit=float(tolerated[u]),
        )
        for u in worst
    ]
    listed = [[users[u], *(short(v) for v in (q[1, u], q[0, u], q[2, u], tolerated[u]))] for u in worst]
    beyond = (record.loss > record.tolerated).mean(0)
    most = int(beyond.argmax())
    says = f"Mean expected loss of each user over the trial, against the control ({scenario}); left of zero is a gain. "
    says += (
        f"Beyond the tolerance most often: {users[most]}, in {percent(float(beyond[most]))} of trials."
        if beyond[most]
        else "No user goes beyond the tolerance in any trial."
    )
    keys = [Key("median, and 90 % of trials", "key-level"), Key("tolerated", "key-allowed")]
    table = Table(in_unit("Expected loss by user", unit), ["user", "median loss", "5 %", "95 %", "tolerated"], listed)
    ends = svg.spread([*q.ravel().tolist(), *tolerated.tolist(), 0.0])
    draw = svg.ranges(rows, ends, in_unit("expected loss of a decision", unit), zero=True)
    return svg.chart("harm-chart", "Harm by user", says, draw, table, keys)


def _claim(record: Record) -> str:
    return LIKELY if record.estimates else PROPENSITIES


def _pm(number: Number) -> str:
    return f"{percent(number.value)} ± {100 * number.error:.1f}"
