"""Random lives of a trial against a model of it that is a few dictionaries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from drimed.errors import ConflictError, InputError, SpecError, UnknownNameError
from drimed.records import Decision, Report
from drimed.trial.spec import TrialSpec
from drimed.trial.stores.memory import MemoryStore
from drimed.trial.trial import Trial
from drimed.trial.verify import verify

METRICS = ("yield", "cost")
VALUES = st.sampled_from([0.0, 1.0, 4.5, 5.0, -2.0, 7.25, 1e9])
PARTS = st.dictionaries(st.sampled_from(METRICS), VALUES, min_size=1)
BAD = st.sampled_from([{"yield": float("nan")}, {"yield": True}, {"yeild": 1.0}, {"cost": "4"}, {}, {"yield": 1e99}])
CONTROL = "old"
# What a trial may be made of; they differ in what they keep, and in when an outcome can be learned from.
KINDS: list[dict[str, Any]] = [
    {},
    {"noise": {"kind": "known", "sd": {"yield": 1.0, "cost": 2.0}}},
    {"policy": {"name": "dri_med", "guard": "budget"}},
    {"policy": {"name": "d_lin_ucb", "discount": 0.8}},
    {"policy": {"name": "dri_med_reward"}},
    {"policy": {"name": "published_dri_med"}, "noise": {"kind": "known", "sd": {"yield": 1.0, "cost": 2.0}}},
]


class Decided:
    """One decision, in the model."""

    def __init__(self, given: Decision, preference: dict[str, float]) -> None:
        self.given, self.preference = given, preference
        self.values: dict[str, float] = {}
        self.missing = False
        self.amendments = 0

    @property
    def state(self) -> str:
        return "told" if self.values else "missing" if self.missing else "awaited"

    @property
    def reward(self) -> float | None:
        if not all(m in self.values for m, w in self.preference.items() if w):
            return None
        return sum(w * self.values.get(m, 0.0) for m, w in self.preference.items())


class Life(RuleBasedStateMachine):
    """Every operation, allowed or not; the model says which, and what it changes."""

    @initialize(kind=st.sampled_from(KINDS), mode=st.sampled_from(["one per episode", "any number"]))
    def start(self, kind: dict[str, Any], mode: str) -> None:
        self.mode = mode
        self.users: dict[str, dict[str, float]] = {"north": {"yield": 1.0}, "south": {"yield": 1.0, "cost": -0.5}}
        self.store = MemoryStore()
        spec = {
            "name": "life",
            "seed": 5,
            "decisions": mode,
            "metrics": {"yield": {"range": [0, 10]}, "cost": {}},
            "arms": {"old": {}, "new": {}, "third": {}},
            "control": CONTROL,
            "users": {u: {"preference": p} for u, p in self.users.items()},
            "tolerance": {"absolute": 4.0},
        }
        self.trial = Trial.create(TrialSpec.read(spec | kind), self.store)
        self.arms, self.retired = ["old", "new", "third"], list[str]()
        self.status, self.episode, self.events = "running", 0, 1
        self.decided: list[Decided] = []
        self.asked: dict[str, int] = {}
        self.away: set[str] = set()  # arms that this episode does not have

    # What may be done is done, and what may not is refused without a trace.

    def refused(self, do: Callable[[], object], error: type[Exception] = ConflictError) -> None:
        with pytest.raises(error):
            do()

    def may_decide(self) -> bool:
        return self.status == "running"

    @rule(data=st.data(), dry_run=st.booleans(), excluded=st.sets(st.sampled_from(["new", "third"])))
    def ask(self, data: st.DataObject, dry_run: bool, excluded: set[str]) -> None:
        who: Any = data.draw(st.none() | st.lists(st.sampled_from(sorted(self.users)), min_size=1, unique=True))
        names = list(self.users) if who is None else who
        if not self.may_decide():
            self.refused(lambda: self.trial.ask(who, dry_run=dry_run))
            return
        given = self.trial.ask(who, unavailable=sorted(excluded), dry_run=dry_run)
        assert [g.user for g in given] == names
        new = [g for g in given if not g.repeated]
        assert [g.id for g in new] == list(range(len(self.decided) + 1, len(self.decided) + 1 + len(new)))
        assert {g.user for g in given if g.repeated} == {u for u in names if u in self.asked}
        for g in given:
            if g.repeated:
                assert g.id == self.asked[g.user]
        out = {*self.retired, *self.away, *excluded}
        for g in new:
            assert list(g.probabilities) == self.arms
            assert abs(sum(g.probabilities.values()) - 1) < 1e-9
            assert g.probabilities[g.arm] > 0
            assert not any(g.probabilities[a] for a in out)
            assert g.episode == max(1, self.episode)
        if dry_run:
            return
        if self.episode == 0:
            self.episode, self.events = 1, self.events + 1
        self.events += len(new)
        for g in new:
            self.decided.append(Decided(g, self.users[g.user]))
            if self.mode == "one per episode":
                self.asked[g.user] = g.id

    @rule(user=st.sampled_from(["nroth", "", "x"]))
    def ask_for_a_stranger(self, user: str) -> None:
        self.refused(lambda: self.trial.ask(user), InputError)

    @rule(away=st.sets(st.sampled_from(["new", "third"])))
    def open_episode(self, away: set[str]) -> None:
        if self.status != "running":
            self.refused(self.trial.open_episode)
            return
        assert self.trial.open_episode(unavailable={"": sorted(away)} if away else None) == self.episode + 1
        self.episode, self.events, self.asked, self.away = self.episode + 1, self.events + 1, {}, away

    @rule(beyond=st.integers(0, 3))
    def repeat_or_skip_an_episode(self, beyond: int) -> None:
        if beyond == 0:
            assert self.trial.open_episode(number=self.episode) == self.episode
        else:
            self.refused(lambda: self.trial.open_episode(number=self.episode + 1 + beyond))

    def one(self, data: st.DataObject) -> tuple[int, Decided]:
        number = data.draw(st.integers(1, len(self.decided)))
        return number, self.decided[number - 1]

    @precondition(lambda self: self.decided)
    @rule(data=st.data(), values=PARTS)
    def tell(self, data: st.DataObject, values: dict[str, float]) -> None:
        number, it = self.one(data)
        if any(m in it.values and it.values[m] != v for m, v in values.items()):
            self.refused(lambda: self.trial.tell(number, values))
            return
        told = self.trial.tell(number, values)
        news = it.values | values != it.values
        state = "already recorded" if not news else "completed" if it.values else "recorded"
        assert told.state == state
        it.values |= values
        it.missing = False
        assert told.outcome == it.values
        self.events += news

    @precondition(lambda self: len(self.decided) > 1)
    @rule(data=st.data(), values=PARTS)
    def tell_many(self, data: st.DataObject, values: dict[str, float]) -> None:
        numbers = data.draw(st.lists(st.integers(1, len(self.decided)), min_size=1, unique=True))
        them = [self.decided[n - 1] for n in numbers]
        reports = [Report(n, values) for n in numbers]
        if any(m in it.values and it.values[m] != v for it in them for m, v in values.items()):
            self.refused(lambda: self.trial.tell_many(reports), InputError)
            return
        self.trial.tell_many(reports)
        for it in them:
            self.events += it.values | values != it.values
            it.values |= values
            it.missing = False

    @precondition(lambda self: self.decided)
    @rule(data=st.data(), values=BAD)
    def tell_nonsense(self, data: st.DataObject, values: Any) -> None:
        number, _ = self.one(data)
        self.refused(lambda: self.trial.tell(number, values), InputError)
        self.refused(lambda: self.trial.tell(len(self.decided) + 1, {"yield": 1.0}), InputError)

    @precondition(lambda self: self.decided)
    @rule(data=st.data(), values=st.dictionaries(st.sampled_from(METRICS), st.none() | VALUES, min_size=1))
    def amend(self, data: st.DataObject, values: dict[str, float | None]) -> None:
        number, it = self.one(data)
        after = {m: v for m, v in (it.values | values).items() if v is not None}
        if not it.values or not after:
            self.refused(lambda: self.trial.amend(number, values, reason="r"), InputError)
            return
        told = self.trial.amend(number, values, reason="r")
        changed = after != it.values
        assert told.state == ("amended" if changed else "already recorded")
        it.amendments += changed
        self.events += changed
        it.values = after

    @precondition(lambda self: self.decided)
    @rule(data=st.data())
    def mark_missing(self, data: st.DataObject) -> None:
        number, it = self.one(data)
        if it.values:
            self.refused(lambda: self.trial.mark_missing(number, reason="hail"))
            return
        told = self.trial.mark_missing(number, reason="hail")
        assert told.state == ("already recorded" if it.missing else "missing")
        self.events += not it.missing
        it.missing = True

    @rule(name=st.sampled_from(["north", "east", "west", "up", "down"]), weight=st.sampled_from([1.0, -2.0]))
    def add_user(self, name: str, weight: float) -> None:
        if name in self.users:
            self.refused(lambda: self.trial.add_user(name, {}))
            return
        self.refused(lambda: self.trial.add_user(name, {"preference": {"x": 1.0}}), SpecError)
        self.trial.add_user(name, {"preference": {"cost": weight}})
        self.users[name] = {"cost": weight}
        self.events += 1

    @rule(data=st.data(), weight=st.sampled_from([1.0, 3.0]))
    def change_preference(self, data: st.DataObject, weight: float) -> None:
        user = data.draw(st.sampled_from(sorted(self.users)))
        self.trial.change_preference(user, {"yield": weight}, reason="prices")
        self.users[user] = {"yield": weight}
        self.events += 1

    @rule(name=st.sampled_from(["new", "fourth", "fifth"]))
    def add_arm(self, name: str) -> None:
        if name in self.arms:
            self.refused(lambda: self.trial.add_arm(name))
            return
        self.trial.add_arm(name)
        self.arms.append(name)
        self.events += 1

    @rule(name=st.sampled_from(["old", "third", "fourth", "nothing"]))
    def retire_arm(self, name: str) -> None:
        if name not in self.arms:
            self.refused(lambda: self.trial.retire_arm(name, reason="r"), UnknownNameError)
        elif name == CONTROL:
            self.refused(lambda: self.trial.retire_arm(name, reason="r"))
        else:
            self.trial.retire_arm(name, reason="r")
            self.events += name not in self.retired
            self.retired += [name] * (name not in self.retired)

    @rule(what=st.sampled_from(["pause", "resume", "resume", "resume", "stop"]), sure=st.integers(0, 9))
    def turn(self, what: str, sure: int) -> None:
        if what == "stop" and sure:  # seldom: little happens after it
            return
        allowed = {"pause": ["running"], "resume": ["paused"], "stop": ["running", "paused"]}[what]
        turn = getattr(self.trial, what)
        if self.status not in allowed:
            self.refused(lambda: turn(reason="r"))
            return
        turn(reason="r")
        self.status = {"pause": "paused", "resume": "running", "stop": "stopped"}[what]
        self.events += 1

    @rule()
    def come_back_later(self) -> None:
        self.trial = Trial.open("life", self.store)

    @invariant()
    def the_status_is_the_models(self) -> None:
        if not hasattr(self, "trial"):
            return
        status = self.trial.status()
        states = [it.state for it in self.decided]
        assert (status.decisions, status.complete) == (len(states), states.count("told"))
        assert (status.missing, status.pending) == (states.count("missing"), states.count("awaited"))
        assert status.amendments == sum(it.amendments for it in self.decided)
        assert (status.status, status.episode, status.users) == (self.status, self.episode, len(self.users))
        assert (status.arms, status.retired) == (self.arms, self.retired)
        assert status.events == self.events

    def teardown(self) -> None:
        if not hasattr(self, "trial"):
            return
        rows = list(self.trial.decisions())
        assert len(rows) == len(self.decided)
        for row, it in zip(rows, self.decided, strict=True):
            assert row.given == it.given
            assert (row.state, row.amendments) == (it.state, it.amendments)
            assert {m: v for m, v in row.outcome.items() if v is not None} == it.values
            assert row.reward == (pytest.approx(it.reward) if it.values and it.reward is not None else None)
        proof = verify(self.store, "life")
        assert proof.faults == []
        assert (proof.exact, proof.decisions) == (len(rows), len(rows))


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=80, stateful_step_count=40)
