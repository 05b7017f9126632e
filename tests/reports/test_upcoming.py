"""What would be decided next: plots that are alike are one row, and arms that matter have a column."""

from __future__ import annotations

from drimed.records import Decision
from drimed.reports.wording import MOST_ARMS, upcoming


def _decision(user: str, plot: str | None, probabilities: dict[str, float]) -> Decision:
    return Decision(
        id=1,
        episode=1,
        user=user,
        arm=next(iter(probabilities)),
        probabilities=probabilities,
        propensity=1.0,
        reason="as the policy proposed; the guard changed nothing",
        share=None,
        effects=None,
        context=None,
        unavailable=[],
        state_version=1,
        time="",
        actor="",
        plot=plot,
    )


def test_plots_that_are_alike_are_one_row() -> None:
    even, odd = {"a": 0.5, "b": 0.5}, {"a": 0.2, "b": 0.8}
    decisions = [_decision("north", p, even) for p in ("1", "2")] + [_decision("north", "3", odd)]
    found = upcoming([*decisions, _decision("south", None, odd)], ["a", "b"])
    assert [(r.who, r.shares) for r in found.rows] == [
        ("north, 2 plots alike", [0.5, 0.5]),
        ("north, plot 3", [0.2, 0.8]),
        ("south", [0.2, 0.8]),
    ]
    assert (found.arms, found.others) == (["a", "b"], 0)


def test_of_many_arms_those_that_somebody_may_get_have_a_column_and_the_rest_is_added_up() -> None:
    arms = [f"a{k}" for k in range(50)]
    shares = dict.fromkeys(arms, 0.0) | {"a3": 0.004, "a30": 0.296, "a44": 0.7}
    found = upcoming([_decision("north", None, shares)], arms)
    assert found.arms == ["a30", "a44"]
    assert found.others == 48
    assert abs(found.rows[0].others - 0.004) < 1e-12
    many = upcoming([_decision("north", None, dict.fromkeys(arms, 0.02))], arms)
    assert len(many.arms) == MOST_ARMS
    assert abs(many.rows[0].others + sum(many.rows[0].shares) - 1) < 1e-12


def test_nobody_is_nothing() -> None:
    assert upcoming([], ["a"]).rows == []
