"""Random lives of a trial against a model of it that is a few dictionaries.

After every step all ways to read a trial agree on the state of every decision: its counts, a search, what is pending,
the decision itself, an export, and the receipt of whoever reported last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from drimed.errors import (
    BatchError,
    ConflictError,
    DrimedError,
    InputError,
    SpecError,
    UnconfirmedError,
    UnknownNameError,
)
from drimed.records import AMENDED, OPEN, SEARCHES, STATES, Receipt, Report, Search
from drimed.trial import queries
from drimed.trial import state as trial_state
from drimed.trial.spec import TrialSpec
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial
from drimed.trial.verify import verify
from tests.trial.model import METRICS, RANGE, Decided, Values, present
from tests.trial.playing import records

VALUES = st.sampled_from([0.0, 1.0, 4.5, 5.0, -2.0, 7.25, 1e9])
SOME = st.dictionaries(st.sampled_from(METRICS), VALUES, min_size=1)
PARTS: st.SearchStrategy[Values] = st.just({}) | SOME
CHANGED: st.SearchStrategy[Values] = st.just({}) | st.dictionaries(
    st.sampled_from(METRICS), st.none() | VALUES, min_size=1
)
BAD = st.sampled_from([{"yield": float("nan")}, {"yield": True}, {"yeild": 1.0}, {"cost": "4"}, {"yield": 1e99}])
CONTROL = "old"
KNOWN = {"kind": "known", "sd": {"yield": 1.0, "cost": 2.0}}
# What a trial may be made of; they differ in what they keep, and in when an outcome can be learned from.
PAPER = {"model": {"kind": "paper"}}
KINDS: list[dict[str, Any]] = [
    {},
    {"feedback": "difference"},
    {"model": {"kind": "people"}, "policy": {"name": "dri_med", "guard": "budget"}},
    PAPER,
    PAPER | {"noise": KNOWN},
    PAPER | {"policy": {"name": "dri_med", "guard": "budget"}},
    PAPER | {"policy": {"name": "d_lin_ucb", "discount": 0.8}},
    PAPER | {"policy": {"name": "dri_med_reward"}, "noise": KNOWN},
    PAPER | {"policy": {"name": "published_dri_med"}, "noise": KNOWN},
]


@pytest.fixture(autouse=True)
def nothing_is_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values far from all others have tests of their own; here only those outside a range are asked about."""
    monkeypatch.setattr(trial_state, "FEWEST", 10**9)


class Life(RuleBasedStateMachine):
    """Every operation, allowed or not; the model says which, and what it changes."""

    @initialize(kind=st.sampled_from(KINDS), mode=st.sampled_from(["one per episode", "any number"]))
    def start(self, kind: dict[str, Any], mode: str) -> None:
        self.mode, self.difference = mode, kind.get("feedback") == "difference"
        self.users: dict[str, dict[str, float]] = {"north": {"yield": 1.0}, "south": {"yield": 1.0, "cost": -0.5}}
        self.store = MemoryStore()
        spec = {
            "name": "life",
            "seed": 5,
            "decisions": mode,
            "metrics": {"yield": {"range": RANGE}, "cost": {}},
            "enrolment": "closed",
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

    def refused(self, do: Callable[[], object], error: type[DrimedError] = ConflictError) -> DrimedError:
        with pytest.raises(error) as found:
            do()
        return found.value

    def may_decide(self) -> bool:
        return self.status == "running"

    @rule(
        data=st.data(),
        dry_run=st.booleans(),
        excluded=st.sets(st.sampled_from(["new", "third"])),
        ahead=st.none() | st.integers(-1, 2),
    )
    def ask(self, data: st.DataObject, dry_run: bool, excluded: set[str], ahead: int | None) -> None:
        who: Any = data.draw(st.none() | st.lists(st.sampled_from(sorted(self.users)), min_size=1, unique=True))
        names = list(self.users) if who is None else who
        episode = None if ahead is None else self.episode + ahead
        in_order = episode is None or max(1, self.episode) <= episode <= self.episode + 1
        if not self.may_decide() or not in_order:
            self.refused(lambda: self.trial.ask_many(who, dry_run=dry_run, episode=episode))
            return
        given = self.trial.ask_many(who, unavailable=sorted(excluded), dry_run=dry_run, episode=episode)
        opens = self.episode == 0 or ahead == 1
        asked, away = ({}, set[str]()) if opens else (self.asked, self.away)
        assert [g.user for g in given] == names
        new = [g for g in given if not g.repeated]
        assert [g.id for g in new] == list(range(len(self.decided) + 1, len(self.decided) + 1 + len(new)))
        assert {g.user for g in given if g.repeated} == {u for u in names if u in asked}
        for g in given:
            if g.repeated:
                assert g.id == asked[g.user]
                assert g.state == self.decided[g.id - 1].state
        out = {*self.retired, *away, *excluded}
        for g in new:
            assert list(g.probabilities) == self.arms
            assert abs(sum(g.probabilities.values()) - 1) < 1e-9
            assert g.arm == "" if dry_run else g.probabilities[g.arm] > 0
            assert not any(g.probabilities[a] for a in out)
            assert g.episode == self.episode + opens
            assert g.state == "pending"
        if dry_run:
            return
        if opens:
            self.episode, self.events, self.asked, self.away = self.episode + 1, self.events + 1, {}, set()
        self.events += len(new)
        for g in new:
            self.decided.append(Decided(g, self.users[g.user], difference=self.difference))
            if self.mode == "one per episode":
                self.asked[g.user] = g.id

    @rule(user=st.sampled_from(["nroth", "", "x"]), ahead=st.none() | st.integers(0, 1))
    def ask_for_a_stranger(self, user: str, ahead: int | None) -> None:
        episode = None if ahead is None else self.episode + ahead
        self.refused(lambda: self.trial.ask(user, episode=episode), InputError)

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

    # Outcomes

    def one(self, data: st.DataObject) -> tuple[int, Decided]:
        number = data.draw(st.integers(1, len(self.decided)))
        return number, self.decided[number - 1]

    def plots(self, plot: Values) -> dict[str, Any]:
        """The control plot's values as `tell` takes them."""
        return {"control": plot} if self.difference else {}

    def check(self, receipt: Receipt, number: int, result: str) -> None:
        it = self.decided[number - 1]
        assert (receipt.decision, receipt.result, receipt.state) == (number, result, it.state)
        assert (receipt.outcome or {}, receipt.control or {}) == (it.values, it.plot)

    @precondition(lambda self: self.decided)
    @rule(data=st.data(), values=PARTS, plot=PARTS, confirm=st.booleans())
    def tell(self, data: st.DataObject, values: Values, plot: Values, confirm: bool) -> None:
        number, it = self.one(data)
        plot = plot if self.difference else {}

        def do() -> Receipt:
            return self.trial.tell(number, values, **self.plots(plot), confirm=confirm)

        if not values and not plot:
            self.refused(do, InputError)
        elif it.contradicts(values, plot):
            self.refused(do)
        elif it.unlikely(values, plot) and not confirm:
            error = self.refused(do, UnconfirmedError)
            assert [f.path for f in error.faults] == [("reports", 0, *at) for at in it.unlikely(values, plot)]
        else:
            result = "completed" if it.told else "recorded"
            news = it.take(values, plot)
            self.events += news
            self.check(do(), number, result if news else "already recorded")

    @precondition(lambda self: len(self.decided) > 1)
    @rule(data=st.data(), values=SOME, plot=SOME, confirm=st.booleans())
    def tell_many(self, data: st.DataObject, values: Values, plot: Values, confirm: bool) -> None:
        numbers = data.draw(st.lists(st.integers(1, len(self.decided)), min_size=2, unique=True))
        plot = plot if self.difference else {}
        them = [self.decided[n - 1] for n in numbers]
        reports = [Report(n, values, plot if self.difference else None) for n in numbers]

        def do() -> list[Receipt]:
            return self.trial.tell_many(reports, confirm=confirm)

        wrong = [("reports", i) for i, it in enumerate(them) if it.contradicts(values, plot)]
        unlikely = [("reports", i, *at) for i, it in enumerate(them) for at in it.unlikely(values, plot)]
        if wrong:
            error = self.refused(do, BatchError)
            assert not isinstance(error, UnconfirmedError)
            assert [f.path[:2] for f in error.faults] == wrong
        elif unlikely and not confirm:
            error = self.refused(do, UnconfirmedError)
            assert [f.path for f in error.faults] == unlikely
        else:
            receipts = do()
            for n, it, receipt in zip(numbers, them, receipts, strict=True):
                result = "completed" if it.told else "recorded"
                news = it.take(values, plot)
                self.events += news
                self.check(receipt, n, result if news else "already recorded")

    @precondition(lambda self: self.decided)
    @rule(data=st.data(), values=BAD)
    def tell_nonsense(self, data: st.DataObject, values: Any) -> None:
        number, _ = self.one(data)
        plot = self.plots({"cost": 1.0})
        self.refused(lambda: self.trial.tell(number, values, **plot, confirm=True), InputError)
        self.refused(lambda: self.trial.tell(len(self.decided) + 1, {"yield": 1.0}, **plot), InputError)

    @precondition(lambda self: self.decided)
    @rule(data=st.data(), values=CHANGED, plot=CHANGED, confirm=st.booleans())
    def amend(self, data: st.DataObject, values: Values, plot: Values, confirm: bool) -> None:
        number, it = self.one(data)
        plot = plot if self.difference else {}
        new, new_plot = present(it.values | values), present(it.plot | plot)

        def do() -> Receipt:
            return self.trial.amend(number, values, reason="r", **self.plots(plot), confirm=confirm)

        changed = (new, new_plot) != (it.values, it.plot)
        if not it.told:
            self.refused(do, InputError)
        elif changed and it.unlikely(values, plot) and not confirm:
            error = self.refused(do, UnconfirmedError)
            assert [f.path for f in error.faults] == it.unlikely(values, plot)
        else:
            receipt = do()
            if changed:
                it.values, it.plot = new, new_plot
                it.given_up = it.given_up and it.state != "complete"
                it.amendments, self.events = it.amendments + 1, self.events + 1
            self.check(receipt, number, "amended" if changed else "already recorded")

    @precondition(lambda self: self.decided)
    @rule(data=st.data())
    def mark_missing(self, data: st.DataObject) -> None:
        number, it = self.one(data)
        if it.state == "complete":
            self.refused(lambda: self.trial.mark_missing(number, reason="hail"))
            return
        receipt = self.trial.mark_missing(number, reason="hail")
        result = "already recorded" if it.given_up else "missing"
        self.events += not it.given_up
        it.given_up = True
        self.check(receipt, number, result)

    # Changes

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

    # Whoever looks

    @invariant()
    def the_status_is_the_models(self) -> None:
        if not hasattr(self, "trial"):
            return
        status = self.trial.status()
        states = [it.state for it in self.decided]
        assert status.decisions == len(states)
        assert {s: getattr(status, s) for s in STATES} == {s: states.count(s) for s in STATES}
        assert status.amendments == sum(it.amendments for it in self.decided)
        assert (status.status, status.episode, status.users) == (self.status, self.episode, len(self.users))
        assert (status.arms, status.retired) == (self.arms, self.retired)
        own = sum(1 for _ in self.trial.log(kinds=["snapshot"]))  # the program's: nobody asked for them
        assert status.events == self.events + own

    @invariant()
    def everybody_sees_the_same_states(self) -> None:
        if not hasattr(self, "trial"):
            return
        states = {n: it.state for n, it in enumerate(self.decided, 1)}
        assert {d.id: d.state for d in self.trial.decisions()} == states
        assert {row["decision"]: row["state"] for row in records(self.trial)} == states
        open_now = {n: s for n, s in states.items() if s in ("pending", "partial")}
        with self.trial.reading() as (ledger, state):
            assert {n: queries.decision(ledger, state, n).state for n in states} == states
            assert queries.pending(ledger) == open_now
            for wanted in SEARCHES:
                found, before = [], None
                while True:
                    page = queries.search(ledger, state, Search(state=wanted), before=before, limit=3)
                    found += [d.id for d in page.items]
                    if page.next is None:
                        break
                    before = int(page.next)
                fits = {
                    n
                    for n, it in enumerate(self.decided, 1)
                    if wanted == it.state
                    or (wanted == AMENDED and it.amendments)
                    or (wanted == OPEN and it.state in ("pending", "partial"))
                }
                assert found == sorted(fits, reverse=True)

    def teardown(self) -> None:
        if not hasattr(self, "trial"):
            return
        rows = list(self.trial.decisions())
        assert len(rows) == len(self.decided)
        for row, it in zip(rows, self.decided, strict=True):
            told = ("state", "outcome", "control", "reward", "amendments")
            mine, its = ({n: v for n, v in vars(one).items() if n not in told} for one in (row, it.given))
            assert mine == its
            assert (row.state, row.amendments) == (it.state, it.amendments)
            assert (row.outcome or {}, row.control or {}) == (it.values, it.plot)
            assert (row.outcome is None) == (not it.told)
            assert row.reward == (None if it.reward is None else pytest.approx(it.reward))
        proof = verify(self.store, "life")
        assert proof.faults == []
        assert (proof.exact, proof.decisions) == (len(rows), len(rows))


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=30, stateful_step_count=40)
