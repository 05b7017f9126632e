"""A share of the users stays on the control for the whole trial, so that the policy itself is put to the test."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from drimed import streams
from drimed.errors import SpecError
from drimed.records import Report
from drimed.reports.analysis import analyse
from drimed.reports.wording import answers, words_of
from drimed.trial import blinding, snapshots
from drimed.trial.estimates import holdout_comparison
from drimed.trial.explain import explain
from drimed.trial.state import catch_up, start_of
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial
from tests.trial.playing import dataset, records, verified
from tests.trial.trials import SMALL

SHARE = 0.3
SITES: dict[str, Any] = {f"site {i}": {} for i in range(12)}
KINDS: dict[str, dict[str, Any]] = {
    "field": {},
    "people": {"model": {"kind": "people"}, "decisions": "any number"},
    "paper": {"model": {"kind": "paper"}},
    "at random": {"policy": {"name": "uniform"}},
    "accounts of users": {"policy": {"name": "dri_med", "guard": "budget"}},
    "published": {"model": {"kind": "paper"}, "policy": {"name": "oful"}},
}


def made(seed: int = 4, **changes: Any) -> Trial:
    return Trial.create(SMALL | {"users": SITES, "holdout": {"share": SHARE}, "seed": seed} | changes, MemoryStore())


def played(trial: Trial, seasons: int = 3) -> Trial:
    rng = np.random.default_rng(1)
    for season in range(1, seasons + 1):
        for d in trial.ask_many(episode=season):
            trial.tell(d.id, {"yield": 4.0 + (d.arm == "new") + float(rng.normal(0, 0.3))})
    return trial


def held(trial: Trial) -> set[str]:
    return {user for user in trial.state().users if trial.state().profile(user).held_out}


@pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS)
def test_a_user_who_is_held_out_gets_the_control_for_sure_and_is_learned_from(changes: dict[str, Any]) -> None:
    trial = played(made(**changes))
    out = held(trial)
    draws = streams.uniforms(4, "holdout", 0, len(SITES), 1)[:, 0]
    assert out == {user for user, u in zip(SITES, draws, strict=True) if u < SHARE}
    assert 1 < len(out) < 8
    for d in trial.decisions():
        assert d.held_out == (SHARE if d.user in out else None)
        if d.user in out:
            assert (d.arm, d.reason) == ("old", "held out: the control for the whole trial")
            assert d.propensity in (1.0, None)
            assert not d.probabilities or d.probabilities["old"] == 1.0
    if changes == KINDS["at random"]:
        assert {d.arm for d in trial.decisions() if d.user not in out} == {"old", "new"}
    verified(trial)
    with trial.reading() as (ledger, state):
        again, restored = catch_up(start_of(ledger), ledger), snapshots.restore(state.created, snapshots.take(state))
        assert restored is not None
        for other in (again, restored):
            assert {u for u in other.users if other.profile(u).held_out} == out
    assert dataset(trial).teaches.all()


def test_who_joins_later_is_drawn_then_and_stays_what_it_is_whatever_changes() -> None:
    trial = made(users={}, model={"kind": "people"}, enrolment="open", decisions="any number")
    for i in range(40):
        trial.ask(f"p{i}")
    out = held(trial)
    assert out == {f"p{i}" for i, u in enumerate(streams.uniforms(4, "holdout", 0, 40, 1)[:, 0]) if u < SHARE}
    for user in sorted(out)[:2]:
        trial.change_preference(user, {"yield": 2.0}, reason="prices")
        trial.change_control(user, "new", reason="a new practice")
        assert (trial.ask(user).arm, trial.decision(41).held_out) == ("new", SHARE)
    assert held(trial) == out
    verified(trial)


def test_a_control_that_is_drawn_cannot_be_kept_to() -> None:
    with pytest.raises(SpecError, match="must be one arm where there is a"):
        made(control={"old": 0.5, "new": 0.5})
    with pytest.raises(SpecError, match="must be one arm"):
        made().change_control("site 1", {"old": 0.5, "new": 0.5}, reason="r")
    assert any("about 0.6 will be held out" in n for n in made(users={"a": {}, "b": {}}).status().notes)


def test_why_and_exports_say_it_and_a_blinded_reader_sees_nothing_of_it() -> None:
    trial = played(made(policy={"name": "uniform"}))
    out, state = held(trial), trial.state()
    for d in trial.decisions():
        with trial.reading() as (ledger, _):
            text = " ".join(explain(ledger, state, d))
        assert ("held out, by a chance of 30 %" in text) == (d.user in out)
        shown = blinding.blinded_decision(state, d)
        assert (shown.held_out, shown.reason, shown.probabilities) == (None, "", {})
    assert {r["user"] for r in records(trial) if r["held_out"] == SHARE} == out


def test_the_policy_is_compared_with_the_control_by_users_and_that_is_said_first() -> None:
    trial = played(made(policy={"name": "uniform"}))
    found, out = holdout_comparison(dataset(trial)), held(trial)
    means = {u: np.mean([d.reward for d in trial.decisions() if d.user == u and d.reward is not None]) for u in SITES}
    one, other = ([m for u, m in means.items() if (u in out) == side] for side in (False, True))
    assert found is not None
    assert found.low is not None
    assert (found.deciding, found.held) == (len(one), len(other))
    assert found.estimate == pytest.approx(np.mean(one) - np.mean(other))
    analysis = analyse(trial)
    first, said = next(iter(answers(analysis, words_of(analysis)).items()))
    assert first == "Is the policy better than the control?"
    assert f"{len(one)} sites decided for by the policy, {len(other)} held out on the control" in said[0]
    few = played(made(seed=1, users={"a": {}, "b": {}}))
    assert "Not known yet" in answers(analyse(few), words_of(analyse(few)))[first][0]
    plain = played(Trial.create(SMALL, MemoryStore()))
    assert holdout_comparison(dataset(plain)) is None
    assert not answers(analyse(plain), words_of(analyse(plain)))[first]


def test_the_range_of_the_comparison_holds_the_truth_as_often_as_it_says() -> None:
    """Of 300 trials of one policy that gains 0.5 on average 95 % hold it: 5.2 to 4.8 more by chance once in 10,000."""
    missed, runs = 0, 300
    for seed in range(runs):
        trial = made(seed, users={f"p{i}": {} for i in range(40)}, policy={"name": "uniform"})
        rng = np.random.default_rng([3, seed])
        y = {d.id: float(4 + rng.normal() + (d.arm == "new")) for d in trial.ask_many(episode=1)}
        trial.tell_many([Report(number, {"yield": value}) for number, value in y.items()])
        found = holdout_comparison(dataset(trial))
        assert found is not None
        missed += found.low is not None and found.high is not None and not found.low <= 0.5 <= found.high
    assert missed <= 30
