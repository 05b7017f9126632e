"""What a trial has taught: effects that are true, numbers that can be checked by hand, and honest silence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from drimed.errors import InputError
from drimed.records import STATES, Effect, Report
from drimed.reports.analysis import Analysis, analyse
from drimed.reports.benefit import Benefit
from drimed.reports.checks import describe_checks
from drimed.reports.effects import EVERYBODY, own_effects
from drimed.reports.regression import fit_now
from drimed.reports.wording import MOST_NAMED, _shares, summary
from drimed.trial.dataset import Dataset, load_dataset
from drimed.trial.estimates import offers_now
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial
from tests.reports.field_trials import FIELD, grown

SPEC: dict[str, Any] = {
    "name": "t",
    "seed": 5,
    "model": {"kind": "paper"},
    "metrics": {"yield": {"range": [0.0, 10.0]}, "cost": {"range": [0.0, 100.0], "better": "lower"}},
    "arms": {"old": {}, "good": {}, "bad": {}},
    "control": "old",
    "preference": {"yield": 2.0, "cost": -0.1},
    "users": {f"u{i}": {"group": "even" if i % 2 == 0 else "odd"} for i in range(6)},
    "tolerance": {"absolute": 4.0},
    "noise": {"kind": "known", "sd": {"yield": 0.5, "cost": 3.0}},
    "context": {"rain": {"typical": 5.0, "spread": 2.0}},
}
YIELD = {"old": 5.0, "good": 6.0, "bad": 4.0}
COST = {"old": 30.0, "good": 30.0, "bad": 20.0}
EFFECT = {"old": 0.0, "good": 2.0, "bad": -1.0}  # 2 dyield - 0.1 dcost


def play(spec: dict[str, Any], episodes: int, *, seed: int = 3, shift: int | None = None, wet: float = 0.0) -> Trial:
    """A trial with known truth; from episode `shift` on the good arm is bad."""
    rng = np.random.default_rng(seed)
    trial = Trial.create(spec, MemoryStore())
    for episode in range(1, episodes + 1):
        rain = {u: {"rain": 5 + 2 * rng.standard_normal() + wet * episode} for u in spec["users"]}
        trial.open_episode(rain if spec.get("context") else None, confirm=True)
        reports = []
        for g in trial.ask_many():
            moved = shift is not None and episode >= shift and g.arm != "old"
            y = YIELD[g.arm] + (-4.0 if moved else 0.0) + 0.5 * rng.standard_normal()
            reports.append(Report(g.id, {"yield": y, "cost": COST[g.arm] + 3 * rng.standard_normal()}))
        trial.tell_many(reports, confirm=True)
    return trial


def gathered(trial: Trial, before: Dataset | None = None) -> Dataset:
    with trial.reading() as (ledger, state):
        return load_dataset(ledger, state, before)


@pytest.fixture(scope="module")
def done() -> Analysis:
    return analyse(play(SPEC, 40))


def test_every_guaranteed_range_holds_the_truth(done: Analysis) -> None:
    """At 1 % for all of them together, over one fixed seed."""
    truth = {"reward": EFFECT, "yield": {a: YIELD[a] - 5 for a in YIELD}, "cost": {a: COST[a] - 30 for a in COST}}
    checked = 0
    for x in done.effects:
        assert x.ends[0] <= truth[x.on][x.arm] <= x.ends[1], x
        assert x.ends[0] <= x.likely_ends[0] <= x.estimate <= x.likely_ends[1] <= x.ends[1], x
        checked += x.source == "model"
    assert checked == 3 * (3 * 3 + 6)  # arms x (groups x (reward and metrics) + users)


def test_groups_and_everybody_are_reported_and_control_has_no_effect(done: Analysis) -> None:
    assert {x.who for x in done.effects} == {EVERYBODY, "even", "odd", *SPEC["users"]}
    control = [x for x in done.effects if x.arm == "old" and x.source == "model"]
    assert all((x.estimate, x.ends[0], x.ends[1]) == (0.0, 0.0, 0.0) for x in control)


def test_the_better_arm_is_recommended(done: Analysis) -> None:
    assert [r.effect.arm for r in done.recommendations] == ["good"] * 6
    assert all(r.p_best > 0.99 and r.effect.likely_ends[0] > 0 for r in done.recommendations)


def test_the_course_counts_every_decision_and_gain(done: Analysis) -> None:
    course = done.benefit
    assert course.allocation.sum() == 240 == done.status.decisions
    seen = done.data
    arms = seen.state.problem.arms
    offers = offers_now(seen.state)
    effect = (offers.features[0] - offers.control_features[0]) @ done.fit.theta  # all users weigh alike
    assert course.gain[-1] == pytest.approx(effect[seen.arm].sum())
    truth = sum(EFFECT[arms[a]] for a in seen.arm)
    assert course.gain_low[-1] <= truth <= course.gain_high[-1]
    assert course.verdict == "certainly within the tolerance"
    assert (np.diff(course.allowed) < 0).all()
    assert course.certain_shortfalls == 0


def test_a_trial_that_only_gave_the_control_has_gained_nothing() -> None:
    trial = Trial.create(SPEC | {"users": {"u0": {}}, "tolerance": {"absolute": 1e-6}}, MemoryStore())
    for episode in range(3):
        trial.open_episode({"u0": {"rain": 5.0}})
        given = trial.ask("u0", unavailable=["good", "bad"])
        trial.tell(given.id, {"yield": 7.0 + episode, "cost": 20.0})
    found = analyse(trial)
    assert (found.benefit.gain.tolist(), found.benefit.gain_high.tolist()) == ([0.0] * 3, [0.0] * 3)
    assert any("Only the control was given" in s for s in summary(found))


def test_the_promise_is_judged_by_the_guaranteed_range() -> None:
    def judged(gain: float, half: float) -> str:
        one = np.ones(1, np.intp)
        middle, low, high, allowed = (np.array([v]) for v in (gain, gain - half, gain + half, -2.0))
        return Benefit(one, one[:, None], one, middle, low, high, allowed, 0, 0, []).verdict

    assert judged(0.0, 1.0) == "certainly within the tolerance"
    assert judged(0.0, 3.0) == "within the tolerance as estimated, but not certainly so"
    assert judged(-3.0, 3.0) == "below what the tolerance allows as estimated, but not certainly so"
    assert judged(-9.0, 3.0) == "certainly below what the tolerance allows"


def test_the_sentences_look_at_every_arm_not_only_at_the_largest_estimate(done: Analysis) -> None:
    """An arm that is likely better counts, also where another one with a wide range is estimated higher."""
    users = list(done.data.state.users)
    found = [
        Effect(users[0], "good", "reward", 1.0, -0.5, 2.5, 0.2, 1.8),
        Effect(users[0], "bad", "reward", 3.0, -9.0, 15.0, -4.0, 10.0),
    ]
    assert "For 1 of 6 users, good is likely better than the control." in summary(replace(done, effects=found))
    likely = [*found, Effect(users[1], "bad", "reward", 1.0, -0.5, 2.5, 0.2, 1.8)]
    said = summary(replace(done, effects=likely))
    assert "For 2 of 6 users, at least one arm (bad, good) is likely better than the control." in said
    said = summary(replace(done, effects=found[1:]))
    assert "No arm is likely to be better than the control for any user so far." in said


def test_the_sentences_leave_out_arms_that_a_user_cannot_get() -> None:
    users = SPEC["users"] | {"u0": {"arms": ["old", "bad"]}}
    said = " ".join(summary(analyse(play(SPEC | {"users": users}, 40))))
    assert "For 5 of 6 users, good is likely better than the control." in said


def test_a_quiet_trial_raises_no_alarm(done: Analysis) -> None:
    assert done.checks.mean is not None
    assert done.checks.residual is not None
    assert done.checks.calibration is not None
    assert done.checks.alarms == []


def test_a_mean_that_moves_raises_the_alarm() -> None:
    found = analyse(play(SPEC, 40, shift=20)).checks
    assert any("effects themselves have moved" in a.what and (a.episode or 0) >= 20 for a in found.alarms)
    assert any(a.what.startswith("yield under good scatters more than assumed") for a in found.alarms)
    assert not any(a.what.startswith("cost") for a in found.alarms)


def test_noise_that_is_larger_than_said_raises_the_alarm() -> None:
    quiet = SPEC | {"noise": {"kind": "known", "sd": {"yield": 0.2, "cost": 3.0}}}
    found = analyse(play(quiet, 30))
    assert any("scatters more than assumed" in a.what for a in found.checks.alarms)


@pytest.mark.parametrize("policy", ["dri_med", "dri_med_reward", "w_oful", "oful", "published_dri_med", "lin_ts"])
def test_inference_is_the_same_kind_whatever_the_policy_learns_from(policy: str) -> None:
    found = analyse(play(SPEC | {"policy": {"name": policy}}, 12))
    assert found.fit.theta.shape == (found.data.state.problem.shape.d,)
    assert {x.arm for x in found.effects} == set(EFFECT)


def test_a_policy_with_vector_feedback_and_one_without_lead_to_the_same_fit() -> None:
    """The same data: the second fit is made from the log of the first trial's data, not from its policy."""
    trial = play(SPEC, 10)
    seen = gathered(trial)
    from drimed.reports import regression

    own = fit_now(seen).fit
    learner = regression.inference_learner(seen.state)
    ridge, noise = learner.init(seen.state.problem.shape), None
    for i in np.flatnonzero(regression.usable(seen, learner)):
        ridge, noise = learner.observe(ridge, noise, *regression.evidence(seen, np.array([i])))
    np.testing.assert_allclose(ridge.theta, own.theta, rtol=1e-9)


def test_effects_of_some_users_come_from_the_state_alone(done: Analysis) -> None:
    """The same numbers as in the analysis, which reads the log."""
    some = ["u4", "u1"]
    found = own_effects(done.data.state, some)
    assert found == [x for user in some for x in done.own_effects if x.who == user]
    assert {x.arm: x.decisions for x in found if x.who == "u4"} == dict(
        zip(
            EFFECT,
            np.bincount(done.data.arm[done.data.user == list(done.data.state.users).index("u4")], minlength=3).tolist(),
            strict=True,
        )
    )


def test_a_policy_without_a_fit_for_inference_takes_that_of_the_analysis() -> None:
    found = analyse(play(SPEC | {"policy": {"name": "published_dri_med"}}, 4))
    with pytest.raises(InputError, match="give that of an analysis"):
        own_effects(found.data.state, ["u0"])
    assert own_effects(found.data.state, ["u0"], found.fit) == [x for x in found.own_effects if x.who == "u0"]


def test_effects_say_which_arms_a_user_cannot_get_now() -> None:
    trial = play(SPEC | {"users": SPEC["users"] | {"u0": {"arms": ["old", "bad"]}}}, 2)
    trial.open_episode({u: {"rain": 5.0} for u in SPEC["users"]}, unavailable={"u1": ["bad"]})
    trial.add_arm("fourth")
    trial.retire_arm("fourth", reason="r")
    found = {(x.who, x.arm) for x in own_effects(trial.state(), ["u0", "u1", "u2"]) if not x.available}
    assert found == {("u0", "good"), ("u1", "bad"), *((u, "fourth") for u in ("u0", "u1", "u2"))}


def test_learned_noise_and_missing_outcomes_are_reported_honestly() -> None:
    trial = play(SPEC | {"noise": {}}, 6)
    trial.open_episode({u: {"rain": 5.0} for u in SPEC["users"]})
    given = trial.ask_many()
    trial.mark_missing(given[0].id, reason="lost")
    trial.tell(given[1].id, {"yield": 5.0})
    found = analyse(trial)
    s = found.status
    assert (s.pending, s.partial, s.complete, s.missing, found.oldest_pending) == (4, 1, 36, 1, 7)
    assert "42 decisions for 6 users in 7 seasons; outcomes: 36 complete, 1 partial, 4 pending, 1 missing." in (
        summary(found)
    )
    np.testing.assert_array_equal(
        np.bincount(found.data.standing, minlength=4), [getattr(s, state) for state in STATES]
    )


def test_a_trial_without_data_can_be_analysed() -> None:
    found = analyse(Trial.create(SPEC, MemoryStore()))
    assert found.status.decisions == 0
    assert found.checks.alarms == []
    assert len(found.recommendations) == 6


def test_a_stopped_trial_says_why_nothing_comes_next() -> None:
    trial = play(SPEC, 2)
    trial.stop(reason="over")
    found = analyse(trial)
    assert found.next == []
    assert "stopped" in str(found.why_not_next)


def test_looking_ahead_writes_nothing() -> None:
    trial = play(SPEC, 3)
    before = trial.status().events
    ahead = analyse(trial).next
    assert trial.status().events == before
    assert len(ahead) == 6


def changes(trial: Trial) -> Iterator[None]:
    """Everything that can change what is gathered, one after the other."""
    wet = {"rain": 5.0}
    trial.open_episode(dict.fromkeys(SPEC["users"], wet))
    yield
    given = trial.ask_many()
    yield
    trial.tell(given[0].id, {"yield": 5.0})
    trial.mark_missing(given[1].id, reason="hail")
    yield
    trial.tell(given[0].id, {"cost": 30.0})
    trial.tell(given[1].id, {"yield": 4.0, "cost": 20.0})
    trial.amend(1, {"yield": 4.5}, reason="typo")
    yield
    trial.add_arm("fourth")
    trial.add_user("u6", {"preference": {"yield": 1.0}})
    trial.change_preference("u0", {"yield": 1.0, "cost": -1.0}, reason="prices")
    yield
    trial.open_episode(dict.fromkeys((*SPEC["users"], "u6"), wet))
    late = trial.ask_many()
    trial.tell_many([Report(g.id, {"yield": 5.0, "cost": 25.0}) for g in late])
    yield


def test_reading_only_what_is_new_gathers_the_same_as_reading_everything() -> None:
    trial = play(SPEC, 3)
    kept = gathered(trial)
    for _ in changes(trial):
        before, kept = kept, gathered(trial, kept)
        whole = gathered(trial)
        for field in (f.name for f in fields(whole) if f.name != "state"):
            np.testing.assert_array_equal(getattr(kept, field), getattr(whole, field), err_msg=field)
        assert (kept.user == whole.user).all()
        assert before.state.seq < kept.state.seq == trial.state().seq


def test_a_log_that_was_set_back_is_read_again() -> None:
    before = gathered(play(SPEC, 4))
    other = play(SPEC, 3, seed=8)  # the same trial from an older backup
    found, whole = gathered(other, before), gathered(other)
    np.testing.assert_array_equal(found.number, np.arange(1, 19))
    np.testing.assert_array_equal(found.vector, whole.vector)


def test_what_was_gathered_stays_as_it_was() -> None:
    trial = play(SPEC, 2)
    seen = gathered(trial)
    was = (seen.state.seq, dict(seen.state.users), seen.state.problem.arms, vars(seen.state.counts).copy())
    theta = seen.state.settled().evidence.ridge.theta.copy()
    for _ in changes(trial):
        pass
    trial.retire_arm("bad", reason="r")
    now = (seen.state.seq, dict(seen.state.users), seen.state.problem.arms, vars(seen.state.counts))
    assert now == was
    assert len(seen.state.profiles) == 6
    assert seen.state.retired == ()
    np.testing.assert_array_equal(seen.state.settled().evidence.ridge.theta, theta)


def test_of_many_arms_the_summary_names_those_given_most_and_adds_up_the_rest() -> None:
    arms = ["old", *(f"a{i}" for i in range(19))]
    found = SimpleNamespace(
        seen=SimpleNamespace(state=SimpleNamespace(problem=SimpleNamespace(arms=arms))),
        course=SimpleNamespace(allocation=np.array([[80, *[1] * 18, 2]])),
    )
    said = _shares(cast(Analysis, found))
    assert said.startswith("old 80 %, ")
    assert "a18 2 %" in said
    assert said.endswith(f"{20 - MOST_NAMED} other arms 12 %")


def test_a_model_of_the_field_is_not_said_to_lack_outcomes_for_checks_of_another_model() -> None:
    found = analyse(grown(FIELD, 3))
    about = dict(describe_checks(found.checks, found.data.state))
    assert not {"Effects", "Noise"} & set(about)
    assert "of the residuals" in about["Model"]
