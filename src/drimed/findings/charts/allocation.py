"""Which arms were given: their shares in each episode, what each user got, and how likely each arm was in a decision.

Shapes: L episodes, K arms, n decisions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup

from drimed.findings.analyse import Analysis
from drimed.findings.charts import svg
from drimed.findings.charts.svg import Chart, Key, Scale, Table, el
from drimed.formatting import counted
from drimed.linear.arrays import IntArray
from drimed.trial.seasons import calendar

MOST_BARS = 60  # episodes beyond which neighbours are put together
MOST_COLUMNS = 40  # episodes of the table of users: the last ones
MOST_ARMS = 14  # that have a look of their own: with more, the arms given least are drawn as one
ROW = 26  # height of a user
BAR = 30.0  # height of an arm
OTHER = "other"  # the look of arms that have none of their own


def by_arm(analysis: Analysis) -> Chart | None:
    """Shares of the arms, episode by episode."""
    counts = analysis.course.allocation  # (L, K)
    if not counts.sum():
        return None
    arms, own = analysis.seen.state.problem.arms, _own_look(counts.sum(0))
    together = -(-len(counts) // MOST_BARS)
    firsts = list(range(0, len(counts), together))
    sums = np.add.reduceat(counts, firsts, axis=0)
    called = calendar(analysis.seen.state)
    ends = [(called.label(f + 1), called.label(min(f + together, len(counts)))) for f in firsts]
    names = [first if first == last else f"{first} to {last}" for first, last in ends]

    def draw(width: int) -> tuple[float, list[Markup]]:
        left, right, top, bottom = 44.0, width - 6.0, 10.0, 230.0
        y = Scale(0, 1, bottom, top)
        step = (right - left) / len(names)
        wide = min(step * 0.86, 64.0)

        def middle(i: float) -> float:
            return left + (i + 0.5) * step

        made = [svg.line(left, y(s), right, y(s), "grid") for s in (0, 0.25, 0.5, 0.75, 1)]
        made += [svg.text(left - 6, y(s) + 4, f"{100 * s:.0f} %", anchor="end") for s in (0, 0.5, 1)]
        for i, row in enumerate(sums):
            total, below = int(row.sum()), 0.0
            drawn: list[tuple[int | None, str, int]] = [
                (look, arms[k], int(row[k])) for k, look in own.items() if row[k]
            ]
            rest = [int(n) for k, n in enumerate(row) if n and k not in own]
            drawn += [(None, counted(len(rest), "other arm"), sum(rest))] if rest else []
            for look, arm, n in drawn:
                share = n / total
                tip = f"{called.word} {names[i]}, {arm}: {100 * share:.0f} % ({n} of {total})"
                top_edge, height = y(below + share), y(below) - y(below + share)
                made += _bar(look, tip, x=middle(i) - wide / 2, y=top_edge, width=wide, height=height)
                below += share
        shown = [first for first, _ in ends]
        return 272.0, made + svg.episodes_axis(middle, shown, bottom, right - left, right, called.word)

    given = np.flatnonzero(counts.sum(0))
    began = [[called.dates.get(f + 1, "")] if called.dates else [] for f in firsts]
    rows = [[names[i], *began[i], *(str(int(n)) for n in row[given])] for i, row in enumerate(sums)]
    never = len(arms) - len(given)
    rest = f"; {counted(never, 'arm')} {'was' if never == 1 else 'were'} never given" if never else ""
    table = Table(
        f"Decisions by {called.word} and arm{rest}",
        [called.word, *(["began on"] if called.dates else []), *(arms[k] for k in given)],
        rows,
    )
    last = sums[-1] / max(1, int(sums[-1].sum()))
    best = int(last.argmax())
    most = f"{100 * last[best]:.0f} % {arms[best]}"
    says = f"Share of decisions by arm in each {called.word}. In {called.word} {names[-1]}: {most}."
    keys = _keys(arms, own, sums.sum(0))
    return svg.drawn("allocation-chart", f"Share of decisions by arm and {called.word}", says, draw, table, keys)


def by_user(analysis: Analysis, users: Sequence[str]) -> Chart | None:
    """What each of these users got in each episode."""
    seen, L = analysis.seen, analysis.seen.state.episode.number
    if not len(seen.arm) or not users:
        return None
    arms = seen.state.problem.arms
    first = max(0, L - MOST_COLUMNS)  # episodes before it are not shown
    all_users = list(seen.state.users)
    place = np.full(len(all_users), -1)
    place[[all_users.index(name) for name in users]] = np.arange(len(users))
    counts = np.zeros((len(users), L - first, len(arms)), np.intp)
    at = (place[seen.user] >= 0) & (seen.episode > first)
    np.add.at(counts, (place[seen.user[at]], seen.episode[at] - 1 - first, seen.arm[at]), 1)
    own, called = _own_look(counts.sum((0, 1))), calendar(seen.state)
    names = [called.label(e) for e in range(first + 1, L + 1)]

    def draw(width: int) -> tuple[float, list[Markup]]:
        left, right = (150.0 if width > 500 else 84.0), width - 6.0
        step = min((right - left) / (L - first), 60.0)

        def middle(i: float) -> float:
            return left + (i + 0.5) * step

        bottom = 8.0 + ROW * len(users)
        made: list[Markup] = []
        for h, user in enumerate(users):
            top = 8.0 + ROW * h
            made.append(svg.text(left - 8, top + 17, user, anchor="end", most=int(left / svg.TEXT) - 1))
            for i, row in enumerate(counts[h]):
                total, y = int(row.sum()), top + 2
                said = ", ".join(f"{arms[k]} ({row[k]})" if total > 1 else arms[k] for k in np.flatnonzero(row))
                for k in np.flatnonzero(row):
                    height = (ROW - 4) * float(row[k]) / total
                    tip = f"{user}, {called.word} {names[i]}: {said}"
                    made += _bar(
                        own.get(int(k)), tip, x=middle(i) - step / 2 + 1, y=y, width=max(1.0, step - 2), height=height
                    )
                    y += height
        span = step * (L - first)
        axis = svg.episodes_axis(middle, names, bottom, span, max(left + span, left + 60), called.word)
        return bottom + 42, made + axis

    def cell(n: IntArray) -> str:
        return ", ".join(f"{arms[k]} × {n[k]}" if n[k] > 1 else arms[k] for k in np.flatnonzero(n))

    rows = [[user, *map(cell, counts[h])] for h, user in enumerate(users)]
    table = Table(f"What each user got, by {called.word}", ["user", *names], rows)
    cut = f" Only the last {MOST_COLUMNS} of {L} {called.word}s are shown." if first else ""
    says = f"What {counted(len(users), 'user')} got in each {called.word}; each colour is an arm.{cut}"
    keys = _keys(arms, own, counts.sum((0, 1)))
    return svg.drawn("allocation-chart", f"What each user got in each {called.word}", says, draw, table, keys)


def probabilities(given: Mapping[str, float], chosen: str) -> Chart:
    """How likely each arm was, and which one was drawn."""
    arms = list(given)

    def draw(width: int) -> tuple[float, list[Markup]]:
        roomy = width > 500
        left, right = (190.0 if roomy else 104.0), width - (120.0 if roomy else 110.0)
        x = Scale(0, 1, left, right)
        made: list[Markup] = []
        for i, arm in enumerate(arms):
            y, p = 6.0 + BAR * i, given[arm]
            look = "tick strong" if arm == chosen else "tick"
            said = f"{100 * p:.1f} %" + (" · given" if arm == chosen else "")
            made += [
                svg.text(left - 10, y + 17, arm, look=look, anchor="end", most=int((left - 14) / svg.TEXT)),
                el("rect", x=left, y=y + 4, width=right - left, height=BAR - 10, class_="track"),
                el(
                    "rect", x=left, y=y + 4, width=max(0.0, x(p) - left), height=BAR - 10,
                    class_="s0 bar" if arm == chosen else "other bar", data_tip=f"{arm}: {100 * p:.2f} %",
                ),
                svg.text(right + 8, y + 17, said, look=look),
            ]  # fmt: skip
        return 12.0 + BAR * len(arms), made

    rows = [[arm, f"{100 * p:.2f} %", "yes" if arm == chosen else ""] for arm, p in given.items()]
    says = ", ".join(f"{arm} {100 * p:.1f} %" for arm, p in given.items()) + f"; {chosen} was given."
    table = Table("The probability of each arm", ["arm", "probability", "given"], rows)
    return svg.drawn("probability-chart", "How likely each arm was", says, draw, table)


def _own_look(given: IntArray) -> dict[int, int]:
    """Arms that are told apart, those given most often, in the order of the file: place -> number of the series."""
    order = np.argsort(-given, kind="stable")
    some = [int(k) for k in order if given[k]]
    return {k: i for i, k in enumerate(sorted(some[:MOST_ARMS]))}


def _keys(arms: Sequence[str], own: Mapping[int, int], given: IntArray) -> list[Key]:
    keys = [Key(arms[k], svg.swatch(look), look) for k, look in own.items()]
    others = int((given > 0).sum()) - len(own)
    return keys + ([Key(counted(others, "other arm"), OTHER, len(own))] if others else [])


def _bar(k: int | None, tip: str, **box: float) -> list[Markup]:
    """A bar of series k, with what is laid over its colour; None: of all other arms."""
    if k is None:
        return [el("rect", **box, class_=f"{OTHER} bar", data_tip=tip)]
    bar = el("rect", **box, class_=f"{svg.colour(k)} bar m-{k}", data_tip=tip)
    return [bar, *(el("rect", **box, class_=f"{name} m-{k}") for name in svg.textures(k))]
