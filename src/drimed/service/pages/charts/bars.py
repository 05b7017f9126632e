"""Probabilities of the arms as bars."""

from __future__ import annotations

from collections.abc import Mapping

from markupsafe import Markup

from drimed.service.pages.charts import svg
from drimed.service.pages.charts.svg import Chart, Scale, Table, el

STEP = 30.0


def probabilities(given: Mapping[str, float], chosen: str) -> Chart:
    """How likely each arm was, and which one was drawn."""
    arms = list(given)

    def draw(width: int) -> tuple[float, list[Markup]]:
        roomy = width > 500
        left, right = (190.0 if roomy else 104.0), width - (120.0 if roomy else 110.0)
        x = Scale(0, 1, left, right)
        made: list[Markup] = []
        for i, arm in enumerate(arms):
            y, p = 6.0 + STEP * i, given[arm]
            look = "tick strong" if arm == chosen else "tick"
            said = f"{100 * p:.1f} %" + (" · given" if arm == chosen else "")
            made += [
                svg.text(left - 10, y + 17, arm, look=look, anchor="end", most=int((left - 14) / svg.TEXT)),
                el("rect", x=left, y=y + 4, width=right - left, height=STEP - 10, class_="track"),
                el(
                    "rect", x=left, y=y + 4, width=max(0.0, x(p) - left), height=STEP - 10,
                    class_="s0 bar" if arm == chosen else "other bar", data_tip=f"{arm}: {100 * p:.2f} %",
                ),
                svg.text(right + 8, y + 17, said, look=look),
            ]  # fmt: skip
        return 12.0 + STEP * len(arms), made

    rows = [[arm, f"{100 * p:.2f} %", "yes" if arm == chosen else ""] for arm, p in given.items()]
    says = ", ".join(f"{arm} {100 * p:.1f} %" for arm, p in given.items()) + f"; {chosen} was given."
    table = Table("The probability of each arm", ["arm", "probability", "given"], rows)
    return svg.drawn("probability-chart", "How likely each arm was", says, draw, table)
