"""Charts: what their colours, words and ranges mean, and how they are looked at."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from drimed.formatting import short
from drimed.records import Effect
from drimed.reports.charts import svg
from drimed.reports.charts.effects import EffectRow, forest
from drimed.reports.charts.svg import Chart
from drimed.reports.page import style


def effects(*rows: EffectRow) -> Chart:
    """A forest plot."""
    made = forest("effects", "Effects", rows, on="leaching")
    assert made is not None
    return made


def row(estimate: float, low: float, high: float, likely: tuple[float, float] | None = None, **more: Any) -> EffectRow:
    """An arm; without a likely range, as a decision records it."""
    ends = (low, high) if likely is None else likely
    source = more.pop("source", "model")
    effect = Effect("u", "a", "reward", estimate, low, high, *ends, source=source, decisions=more.pop("given", 0))
    return EffectRow(more.pop("label", "a"), effect, single=likely is None and source == "model", **more)


def test_green_is_better_whichever_way_that_is() -> None:
    more, less = (1.0, 0.5, 1.5, (0.8, 1.2)), (-1.0, -1.5, -0.5, (-1.2, -0.8))
    assert [row(*v).look for v in (more, less)] == ["up", "down"]
    assert [row(*v, better="higher").look for v in (more, less)] == ["up", "down"]
    assert [row(*v, better="lower").look for v in (more, less)] == ["down", "up"]
    assert row(1.0, -0.5, 1.5, (-0.2, 1.2), better="lower").look == "open"


def test_effects_on_a_metric_say_more_or_less_and_whether_that_is_better() -> None:
    likely = (1.0, -0.5, 1.5, (0.8, 1.2))
    assert row(*likely).verdict == "more, likely"
    assert row(*likely, better="higher").verdict == "more (better), likely"
    assert row(*likely, better="lower").verdict == "more (worse), likely"
    assert row(-1.0, -2.0, -0.5, better="lower").verdict == "less (better)"
    for picture in (effects(row(*likely, better="lower")).wide, effects(row(*likely, better="lower")).narrow):
        assert "← less (better)" in picture
        assert "more (worse) →" in picture


def test_effects_say_how_often_each_arm_was_given() -> None:
    rows = [row(1.0, -0.5, 1.5, (0.8, 1.2), given=n) for n in (0, 1, 1200)]
    made = effects(*rows)
    assert [row[1] for row in made.table.rows] == ["never", "1 time", "1,200 times"]
    assert made.table.columns[1] == "given"
    for picture in (made.wide, made.narrow):
        for said in ("never given", "given 1 time", "given 1,200 times"):
            assert f">{said}</text>" in picture
    unknown = effects(row(1.0, -0.5, 1.5))
    assert "given" not in unknown.table.columns


def test_a_retired_arm_is_marked_however_long_its_name_is() -> None:
    one = replace(row(1, -1, 3), retired=True, label="a new variety of winter barley with a very long name")
    drawn = re.findall(r"<text[^>]*>([^<]*)", str(effects(one).wide))
    assert [said for said in drawn if said.startswith("a new variety") and said.endswith("… (retired)")]


def test_arms_that_were_never_given_do_not_set_the_range() -> None:
    known = row(1.0, 0.5, 1.5, (0.8, 1.2), given=9)
    guessed = row(300.0, -900.0, 1500.0, (-500.0, 1100.0), given=0)
    alone, both = effects(known), effects(known, guessed)

    def numbers(chart: Chart) -> list[str]:
        return re.findall(r'text-anchor="middle">([−\d.,]+)</text>', chart.wide)

    assert numbers(both) == numbers(alone)
    assert both.wide.count("thin arrow") == 2, "its range goes on at both ends"
    assert both.wide.count('class="dot"') == 1, "its estimate is outside"
    assert len(numbers(effects(guessed))) > 2, "where there is nothing else it is shown"


def test_words_below_effects_say_when_there_are_more() -> None:
    rows = [row(1.0, 0.5, 1.5, (0.8, 1.2)) for i in range(10)]
    assert effects(*rows).text.endswith("; and 2 more in the table.")
    assert "more in the table" not in effects(*rows[:8]).text


def test_no_two_arms_look_alike() -> None:
    assert len({svg.swatch(k) for k in range(svg.MOST_LOOKS)}) == svg.MOST_LOOKS
    for k in range(svg.MOST_LOOKS + 1):
        for look in svg.swatch(k).split():
            assert f".{look} " in style(), look


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_marks_and_borders_stand_out(scheme: int) -> None:
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]+);", style().split("prefers-color-scheme: dark")[scheme]))
    for ground in ("bg", "card", "track"):
        assert contrast(colours["other"], colours[ground]) >= 3, ground
    for k in range(svg.SERIES):
        series = colours[f"s{k}"]
        assert contrast(series, colours["card"]) >= 3, series
        assert contrast(over(colours["shade"], series), colours["card"]) >= 3, series


def test_numbers_have_one_minus_sign() -> None:
    assert [short(v) for v in (-36241.4, -0.25)] == ["−36,241", "−0.25"]
    made = effects(row(-2.0, -3.0, -1.0, (-2.5, -1.5), source="propensities"), row(-36241.0, -4e4, -3e4))
    said = " ".join([made.text, made.wide, *(cell for row in made.table.rows for cell in row)])
    assert "−36,241" in said
    assert not re.search(r"[\s>(]-\d", re.sub(r' (?:d|x|y|x1|x2|y1|y2|cx|viewBox)="[^"]*"', "", said))


def contrast(one: str, other: str) -> float:
    """The ratio of the luminances of two colours, as WCAG 2 has it."""
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def over(veil: str, colour: str) -> str:
    """A colour below one that lets it through."""
    share = int(veil[7:9], 16) / 255
    mixed = [share * v + (1 - share) * c for v, c in zip(_parts(veil), _parts(colour), strict=True)]
    return "#" + "".join(f"{round(v):02x}" for v in mixed)


def _luminance(colour: str) -> float:
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in (p / 255 for p in _parts(colour))]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _parts(colour: str) -> list[int]:
    digits = colour[1:] if len(colour) > 4 else "".join(2 * d for d in colour[1:])
    return [int(digits[i : i + 2], 16) for i in (0, 2, 4)]
