"""Charts: the meaning of their colours, words and ranges, and their legibility."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from drimed.formatting import short
from drimed.records import Claim, Effect
from drimed.reports import charts, svg
from drimed.reports.analysis import analyse
from drimed.reports.charts import MOST_PANELS, EffectRow, forest, over_time
from drimed.reports.frame import style
from drimed.reports.svg import Chart
from tests.reports.worlds import FIELD, field, grown


def effects(*rows: EffectRow) -> Chart:
    made = forest("effects", "Effects", rows, on="leaching")
    assert made is not None
    return made


def row(estimate: float, low: float, high: float, likely: tuple[float, float] | None = None, **more: Any) -> EffectRow:
    """An arm; without a likely range, as a decision records it."""
    ends = (low, high) if likely is None else likely
    source = more.pop("source", "model")
    effect = Effect("u", "a", "reward", estimate, low, high, *ends, source=source, decisions=more.pop("given", 0))
    return EffectRow(more.pop("label", "a"), effect, single=likely is None and source == "model", **more)


def test_green_is_better_and_words_say_whether_more_is() -> None:
    more, less = (1.0, 0.5, 1.5, (0.8, 1.2)), (-1.0, -1.5, -0.5, (-1.2, -0.8))
    assert [row(*v).look for v in (more, less)] == ["up", "down"]
    assert [row(*v, better="lower").look for v in (more, less)] == ["down", "up"]
    assert row(1.0, -0.5, 1.5, (-0.2, 1.2), better="lower").look == "open"
    likely = (1.0, -0.5, 1.5, (0.8, 1.2))
    assert row(*likely).verdict == "more, likely"
    assert row(*likely, better="lower").verdict == "more (worse), likely"
    assert row(-1.0, -2.0, -0.5, better="lower").verdict == "less (better)"
    for picture in (
        effects(row(*likely, better="lower")).picture("wide"),
        effects(row(*likely, better="lower")).picture("narrow"),
    ):
        assert "← less (better)" in picture
        assert "more (worse) →" in picture


def test_inconclusive_effects_are_explained_and_certain_ones_are_not() -> None:
    one = row(1.1, -9.0, 11.0, (0.2, 2.0))
    chance = replace(one, effect=replace(one.effect, seasons=4, significant=False))
    made = effects(chance)
    assert "not after adjusting for multiple comparisons" in made.text
    assert ">inconclusive</text>" in made.picture("wide")
    sure = effects(replace(chance, effect=replace(chance.effect, low=0.1, high=2.1)))
    assert "inconclusive" not in (sure.text + sure.picture("wide")).lower()


def test_effects_say_how_often_each_arm_was_given() -> None:
    made = effects(*(row(1.0, -0.5, 1.5, (0.8, 1.2), given=n) for n in (0, 1, 1200)))
    assert made.table.columns[1] == "given"
    assert [cells[1] for cells in made.table.rows] == ["never", "1 time", "1,200 times"]
    for picture in (made.picture("wide"), made.picture("narrow")):
        for said in ("never given", "given 1 time", "given 1,200 times"):
            assert f">{said}</text>" in picture
    assert "given" not in effects(row(1.0, -0.5, 1.5)).table.columns


def test_a_retired_arm_is_marked_however_long_its_name_is() -> None:
    one = replace(row(1, -1, 3), retired=True, label="a new variety of winter barley with a very long name, of 2026")
    names = re.findall(r"<text[^>]*>([^<]*)", str(effects(one).picture("wide")))
    assert [name for name in names if name.startswith("a new variety") and name.endswith("… (retired)")]


def test_arms_that_were_never_given_do_not_set_the_axis() -> None:
    known = row(1.0, 0.5, 1.5, (0.8, 1.2), given=9)
    guessed = row(300.0, -900.0, 1500.0, (-500.0, 1100.0), given=0)

    def ticks(chart: Chart) -> list[str]:
        return re.findall(r'text-anchor="middle">([−\d.,]+)</text>', chart.picture("wide"))

    both = effects(known, guessed)
    assert ticks(both) == ticks(effects(known))
    assert both.picture("wide").count("thin arrow") == 2, "its range goes on at both ends"
    assert both.picture("wide").count('class="dot"') == 1, "its estimate is outside"
    assert len(ticks(effects(guessed))) > 2, "where there is nothing else it is shown"
    unknown = replace(known, effect=replace(known.effect, low=None, high=None))
    assert effects(unknown).picture("wide").count("thin arrow") == 2
    assert "not known yet" in effects(unknown).table.rows[0]


def test_numbers_have_one_minus_sign() -> None:
    assert [short(v) for v in (-36241.4, -0.25)] == ["−36,241", "−0.25"]
    made = effects(row(-2.0, -3.0, -1.0, (-2.5, -1.5), source="propensities"), row(-36241.0, -4e4, -3e4))
    said = " ".join([made.text, made.picture("wide"), *(cell for cells in made.table.rows for cell in cells)])
    assert "−36,241" in said
    assert not re.search(r"[\s>(]-\d", re.sub(r' (?:d|x|y|x1|x2|y1|y2|cx|viewBox)="[^"]*"', "", said))


def test_effects_over_time_have_a_panel_for_each_arm_given_most() -> None:
    made = over_time(field(), "yield", "dt")
    assert made is not None
    assert "Effects on yield (dt) against control after each season" in made.title
    told = [cells for cells in made.table.rows if cells[-1] != "no outcome yet"]
    assert len(told) == sum(x.on == "yield" for effects in field().past.values() for x in effects)
    assert all(made.picture("wide").count(f">{arm}</text>") == 1 for arm in ("good", "bad"))
    assert "dt after 8" in made.text
    arms = ["old", *(f"a{i}" for i in range(9))]
    many = analyse(grown(FIELD | {"arms": {a: {} for a in arms}, "policy": {"name": "uniform"}}, 2))
    made = over_time(many, "reward", "")
    assert made is not None
    shown = {cells[0] for cells in made.table.rows}
    assert len(shown) == MOST_PANELS
    assert min(many.times[a] for a in shown) >= max(many.times[a] for a in arms[1:] if a not in shown)


def test_a_stopping_chart_has_the_lines_that_an_end_must_pass() -> None:
    claim = Claim("r", "equivalence", "cost", "all", "all users", "new", -1.0, 1.0, 0.05, 2.0, -1.0, met=True)
    assert charts.margins(claim, "higher") == [-2.0, 2.0]
    harm = replace(claim, kind="harm", distance=3.0, met=False)
    assert charts.margins(harm, "higher") == [-2.0]
    assert charts.margins(harm, "lower") == [2.0]


def test_no_two_arms_look_alike() -> None:
    assert len({svg.swatch(k) for k in range(svg.MOST_LOOKS)}) == svg.MOST_LOOKS
    for k in range(svg.MOST_LOOKS + 1):
        for look in svg.swatch(k).split():
            assert f".{look} " in style(), look


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_marks_and_borders_stand_out(scheme: int) -> None:
    """At least 3 to 1 by WCAG 2."""
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]+);", style().split("prefers-color-scheme: dark")[scheme]))
    for ground in ("bg", "card", "track"):
        assert contrast(colours["other"], colours[ground]) >= 3, ground
    for k in range(svg.SERIES):
        assert contrast(colours[f"s{k}"], colours["card"]) >= 3, k


def contrast(one: str, other: str) -> float:
    """The ratio of the luminances of two colours."""
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) > 4 else "".join(2 * d for d in colour[1:])
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
