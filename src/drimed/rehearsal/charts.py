"""The pictures of a rehearsal: power by season, regret against power, allocation, harm by user.

Shapes: S trials, L seasons, K arms, U users.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup

from drimed.findings.charts import svg
from drimed.findings.charts.course import axes, columns, through
from drimed.findings.charts.svg import Chart, Key, Scale, Table, el
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

    def draw(width: int) -> tuple[float, list[Markup]]:
        made, x, y, frame = axes(width, (0.0, 1.0), 230.0, [str(season + 1) for season in range(L)], "season")
        made.append(svg.line(frame[0], y(0.8), frame[1], y(0.8), "allowed"))
        for k, (name, numbers) in enumerate(found.items()):
            at = shown[name].looks.tolist()
            upper = [(x(t), y(n.value + SURE * n.error)) for t, n in zip(at, numbers, strict=True)]
            lower = [(x(t), y(n.value - SURE * n.error)) for t, n in zip(at, numbers, strict=True)]
            made.append(svg.path([*upper, *reversed(lower)], f"b{k}", closed=True))
            made.append(svg.path([(x(t), y(n.value)) for t, n in zip(at, numbers, strict=True)], f"l{k}"))
        tips = ["; ".join([f"season {t + 1}", *(f"{n}: {percent(v[t].value)}" for n, v in found.items() if t < len(v))])
                for t in range(L)]  # fmt: skip
        return 276.0, made + columns(x, tips, frame, 230.0)

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
    return svg.drawn("power-chart", "Power against seasons", says, draw, table, keys)


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
    return svg.drawn("designs-chart", "Regret against power, by design", says, draw, table, keys)


def allocation(record: Record, arms: Sequence[str], scenario: str) -> Chart:
    """How often each arm is given in each season: the mean, and where the middle half of the trials is."""
    q = np.nanquantile(record.shares, [0.25, 0.5, 0.75], axis=0)  # (3, L, K), of the trials that go on
    mean = np.nanmean(record.shares, 0)
    L = q.shape[1]

    def draw(width: int) -> tuple[float, list[Markup]]:
        made, x, y, frame = axes(width, (0.0, 1.0), 230.0, [str(season + 1) for season in range(L)], "season")
        for k in range(min(len(arms), MOST_LINES)):
            edge = through(x, y, q[2, :, k].tolist()) + through(x, y, q[0, :, k].tolist())[::-1]
            if L > 1:
                made.append(svg.path(edge, f"b{k}", closed=True))
            made.append(svg.path(through(x, y, mean[:, k].tolist()), f"l{k}"))
        tips = [
            "; ".join([f"season {t + 1}", *(f"{a}: {percent(mean[t, k])}" for k, a in enumerate(arms))])
            for t in range(L)
        ]
        return 276.0, made + columns(x, tips, frame, 230.0)

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
    return svg.drawn("allocation-chart", "Allocation over time", says, draw, table, keys)


def harm(record: Record, users: Sequence[str], scenario: str, unit: str = "") -> Chart:
    """What each user is expected to lose against the control."""
    q, tolerated = harm_by_user(record)
    worst = np.argsort(-q[2])[:MOST_USERS]
    low, high = svg.spread([*q.ravel().tolist(), *tolerated.tolist(), 0.0])

    def draw(width: int) -> tuple[float, list[Markup]]:
        left, right, row = (150.0 if width > 500 else 92.0), width - 14.0, 24.0
        bottom = 14.0 + row * len(worst)
        x = Scale(low, high, left, right)
        made = [svg.line(x(t), 8, x(t), bottom, "grid") for t in svg.ticks(low, high)]
        made += [svg.text(x(t), bottom + 17, short(t), anchor="middle") for t in svg.ticks(low, high)]
        made.append(svg.line(x(0), 8, x(0), bottom, "zero"))
        for i, u in enumerate(worst.tolist()):
            y = 14.0 + row * (i + 0.5)
            tip = f"{users[u]}: {short(q[1, u])}, 90 % of trials {short(q[0, u])} to {short(q[2, u])}; "
            tip += f"tolerated {short(tolerated[u])}"
            made.append(svg.text(left - 8, y + 4, users[u], anchor="end", most=int((left - 12) / svg.TEXT)))
            made.append(svg.line(x(q[0, u]), y, x(q[2, u]), y, "l0"))
            made.append(el("circle", cx=x(q[1, u]), cy=y, r=4.2, class_="s0 dot", data_tip=tip))
            made.append(svg.line(x(tolerated[u]), y - 8, x(tolerated[u]), y + 8, "l1"))
        made.append(
            svg.text(right, bottom + 34, in_unit("expected loss of a decision", unit), look="label", anchor="end")
        )
        return bottom + 42.0, made

    rows = [[users[u], short(q[1, u]), short(q[0, u]), short(q[2, u]), short(tolerated[u])] for u in worst.tolist()]
    beyond = (record.loss > record.tolerated).mean(0)
    most = int(beyond.argmax())
    says = (
        f"Mean expected loss of each user over the trial, against the control ({scenario}); left of zero is a gain. "
        + (
            f"Beyond the tolerance most often: {users[most]}, in {percent(float(beyond[most]))} of trials."
            if beyond[most]
            else "Nobody goes beyond the tolerance in any trial."
        )
    )
    keys = [Key("middle, and 90 % of trials", "k0"), Key("tolerated", "k1")]
    columns_ = ["user", "median loss", "5 %", "95 %", "tolerated"]
    return svg.drawn(
        "harm-chart", "Harm by user", says, draw, Table(in_unit("Expected loss by user", unit), columns_, rows), keys
    )


def _claim(record: Record) -> str:
    return LIKELY if record.estimates else PROPENSITIES


def _pm(number: Number) -> str:
    return f"{percent(number.value)} ± {100 * number.error:.1f}"
