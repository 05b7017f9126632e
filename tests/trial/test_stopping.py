"""Stopping rules in a trial: looks, what they find, what follows, and that nobody can forge one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from drimed.errors import ConflictError, HaltedError, InputError, SpecError
from drimed.formatting import short
from drimed.records import Look, Report, unconfirmed
from drimed.reports.charts import describe_claim as said_of
from drimed.trial import events as kinds
from drimed.trial import snapshots, stopping
from drimed.trial.look_history import look_hash
from drimed.trial.spec import TrialSpec
from drimed.trial.store import MemoryStore, Store
from drimed.trial.trial import Trial
from drimed.trial.verify import verify
from tests.trial.forging import NAME, chained, stored, with_body

SPEC: dict[str, Any] = {
    "name": NAME,
    "seed": 3,
    "metrics": {"yield": {}, "cost": {}},
    "arms": {"old": {}, "new": {}, "bad": {}},
    "control": "old",
    "preference": {"yield": 1.0, "cost": -0.1},
    "tolerance": {"absolute": 50.0},
    "users": {f"u{i}": {"group": "hill" if i < 3 else "dale"} for i in range(6)},
    "floors": {"control": 0.2, "arms": 0.1},
}
MEANS = {"old": 10.0, "new": 14.0, "bad": 4.0}
SUPERIOR = {"kind": "superiority", "arm": "new"}


def create(stopping: Mapping[str, Any], store: Store | None = None, **more: Any) -> Trial:
    return Trial.create(TrialSpec.read(SPEC | {"stopping": stopping} | more), store or MemoryStore())


def play(
    trial: Trial, seasons: int, means: Mapping[str, float] = MEANS, seed: int = 0, costs: Mapping[str, float] = {}
) -> Trial:
    """Seasons until the trial halts."""
    rng = np.random.default_rng(seed)
    for _ in range(seasons):
        try:
            decided = trial.ask_many(episode=trial.state().episode.number + 1)
        except HaltedError:
            break
        for d in decided:
            outcome = means[d.arm] + float(rng.standard_normal()), costs.get(d.arm, 1.0) + float(rng.random())
            trial.tell(d.id, dict(zip(("yield", "cost"), outcome, strict=True)), confirm=True)
    return trial


def looks(trial: Trial) -> list[dict[str, Any]]:
    return [e.body for e in trial.log(kinds=[kinds.LOOK])]


def the_claim(body: Mapping[str, Any], rule: str = "r") -> dict[str, Any]:
    (claim,) = [one for one in body["claims"] if one["rule"] == rule]
    return dict(claim)


# What rules do


@pytest.mark.parametrize("evidence", ["propensities", "model"])
def test_a_trial_is_stopped_by_its_rule_and_says_why(store: Store, evidence: str) -> None:
    rule = SUPERIOR | {"then": "stop", "evidence": evidence}
    trial = play(create({"rules": {"r": rule}}, store), 30)
    state = trial.state()
    assert state.status == "stopped"
    assert 2 < state.episode.number < 30
    assert [e.kind for e in trial.log(newest_first=True, limit=2)] == [kinds.STOPPED, kinds.LOOK]
    assert the_claim(looks(trial)[-1])["met"]
    assert not any(the_claim(body)["met"] for body in looks(trial)[:-1])
    with pytest.raises(ConflictError, match="stopping rule 'r' is met: new for all users"):
        trial.ask_many()
    with pytest.raises(ConflictError, match="stopping rule 'r' is met"):
        trial.open_episode()
    proof = verify(trial.store, NAME)
    assert proof.ok
    assert proof.looks == len(looks(trial)) == state.episode.number


HUGE = {"old": 10.0, "new": 1000.0, "bad": -900.0}
EVEN: dict[str, Any] = {
    "policy": {"name": "uniform"},
    "users": {f"u{i}": {"plots": [str(p) for p in range(8)], "group": "hill"} for i in range(3)},
    "metrics": {"yield": {"range": [-2000, 2000]}, "cost": {"range": [0, 10]}},
}
ON_MODEL: dict[str, Any] = {
    "up": SUPERIOR | {"evidence": "model", "then": "stop"},
    "down": {"kind": "harm", "arm": "bad", "evidence": "model", "each": "user"},
    "same": {"kind": "non_inferiority", "arm": "new", "margin": 1.0, "evidence": "model", "group": "hill"},
    "no use": {"kind": "futility", "arm": "bad", "margin": 5.0, "evidence": "model"},
}


def met(body: Mapping[str, Any]) -> set[str]:
    return {c["rule"] for c in body["claims"]} - {c["rule"] for c in body["claims"] if not c["met"]}


def test_rules_by_the_model_wait_for_a_second_season_however_clear_the_first_is() -> None:
    trial = play(create({"rules": ON_MODEL}, **EVEN), 1, HUGE)
    trial.look()
    first = looks(trial)[-1]
    assert met(first) == set()
    found = [(claim["distance"], claim["seasons"]) for claim in first["claims"]]
    assert all(distance < 0 and seasons == 1 for distance, seasons in found), "the ranges show it"
    (said, *_) = trial.look(dry_run=True).claims
    assert (said.seasons, said.met) == (1, False)
    assert said_of(said, "") == f"{short(said.low or 0)} to {short(said.high or 0)}, {unconfirmed(1)}"
    assert trial.state().status == "running"
    play(trial, 2, HUGE, seed=1)
    assert met(looks(trial)[-1]) == set(ON_MODEL)
    assert (trial.state().status, trial.state().episode.number) == ("stopped", 2)
    assert verify(trial.store, NAME).ok


DRIFTING: dict[str, Any] = {
    "model": {"seasons": False},
    "users": {f"u{i}": {"plots": ["1", "2"]} for i in range(6)},
    "metrics": {"yield": {}},
    "preference": {"yield": 1.0},
    "floors": None,
    "tolerance": {"absolute": 3.0},
    "stopping": {"rules": {"r": {"kind": "superiority", "evidence": "model", "then": "stop"}}, "looks": "by hand"},
}


def unseasoned(**changes: Any) -> dict[str, Any]:
    """A file with a rule that ends its trial by a model without seasons."""
    return {name: value for name, value in (SPEC | DRIFTING | changes).items() if value is not None}


def drifting(seasons: int, store: Store | None = None) -> Trial:
    """Arms that do nothing, and a level that rises from season to season, which the model is told not to expect."""
    rules = {"r": {"kind": "superiority", "evidence": "model"}}
    spec = TrialSpec.read(unseasoned(stopping={"rules": rules, "looks": "by hand"}))
    trial, rng = Trial.create(spec, store or MemoryStore()), np.random.default_rng(0)
    for season in range(1, seasons + 1):
        decided = trial.ask_many(episode=season)
        told = {d.id: {"yield": 20 + 0.6 * season + float(rng.standard_normal())} for d in decided}
        trial.tell_many([Report(number, outcome) for number, outcome in told.items()])
    return trial


def test_a_rule_by_the_model_is_not_met_where_the_model_is_wrong() -> None:
    """The level rises while arms change, so that the model takes one of them for better."""
    trial = drifting(10)
    trial.look()
    last = looks(trial)[-1]
    assert "yield" in last["claims"][0]["withdrawn"]
    assert any(claim["distance"] < 0 and not claim["met"] for claim in last["claims"])
    (said, *_) = [c for c in trial.look(dry_run=True).claims if c.distance is not None and c.distance < 0]
    assert f"the model is wrong and shows nothing ({said.withdrawn})" in said_of(said, "")
    proof = verify(trial.store, NAME)
    assert (proof.ok, proof.looks) == (True, len(looks(trial)))


ONCE = {"rules": DRIFTING["stopping"]["rules"], "seasons": 1}


@pytest.mark.parametrize("kind", ["field", "people"])
@pytest.mark.parametrize("then", ["stop", "pause"])
def test_a_rule_that_ends_a_trial_by_a_model_without_seasons_is_refused(kind: str, then: str) -> None:
    rule = {"kind": "superiority", "evidence": "model", "then": then}
    data = unseasoned(model={"kind": kind, "seasons": False}, stopping={"rules": {"r": rule}})
    with pytest.raises(SpecError) as refused:
        TrialSpec.read(data)
    (fault,) = refused.value.faults
    assert fault.path == ("stopping", "rules", "r", "evidence")
    assert "a model without seasons takes a shift from season to season for an effect" in fault.message
    assert 'evidence = "propensities"' in fault.message


def test_a_trial_of_one_season_keeps_to_it_while_its_rule_ends_it_by_the_model() -> None:
    trial = Trial.create(TrialSpec.read(unseasoned(stopping=ONCE)), MemoryStore())
    with pytest.raises(SpecError, match="a model without seasons"):
        trial.change_rules({"rules": ONCE["rules"]}, reason="more seasons")


def test_exact_evidence_is_wider_and_claims_nothing_once_an_outcome_leaves_its_range() -> None:
    rules = {"exact": SUPERIOR | {"evidence": "exact"}, "asymptotic": SUPERIOR}
    metrics = {"yield": {"range": [0.0, 20.0]}, "cost": {"range": [0.0, 3.0]}}
    trial = play(create({"rules": rules, "looks": "by hand"}, metrics=metrics), 15)
    trial.look()
    said = {name: the_claim(looks(trial)[-1], name) for name in rules}
    assert said["exact"]["low"] < said["asymptotic"]["low"] < 4.0 < said["asymptotic"]["high"] < said["exact"]["high"]
    decided = trial.ask_many(episode=16)
    trial.tell(decided[0].id, {"yield": 21.0, "cost": 1.0}, confirm=True)
    trial.look()
    after = {name: the_claim(looks(trial)[-1], name) for name in rules}
    assert after["exact"]["low"] is None
    assert after["asymptotic"]["low"] is not None
    assert verify(trial.store, NAME).ok


def test_a_rule_that_advises_lets_the_trial_go_on_and_a_rule_that_pauses_does_so_once() -> None:
    trial = play(create({"rules": {"r": SUPERIOR}}), 12)
    assert trial.state().status == "running"
    assert list(trial.state().looked.met) == ["r"]
    assert trial.status().rules_met == ["r"]
    paused = play(create({"rules": {"r": SUPERIOR | {"then": "pause"}}}), 12)
    assert paused.state().status == "paused"
    assert paused.status().halted.startswith("stopping rule 'r' is met")
    paused.resume(reason="to learn more")
    play(paused, 3)
    assert paused.state().status == "running"
    assert paused.status().halted == ""
    assert len(list(paused.log(kinds=[kinds.PAUSED]))) == 1
    assert verify(paused.store, NAME).ok


def test_nothing_is_claimed_where_there_is_nothing_to_claim() -> None:
    rules = {
        "up": {"kind": "superiority", "then": "stop"},
        "down": {"kind": "harm", "then": "stop"},
        "same": {"kind": "equivalence", "margin": 0.01, "then": "stop"},
    }
    trial = play(create({"rules": rules}), 15, {"old": 10.0, "new": 10.0, "bad": 10.0})
    assert trial.state().status == "running"
    assert trial.state().looked.met == {}
    assert all(not claim["met"] for body in looks(trial) for claim in body["claims"])


@pytest.mark.parametrize(
    ("rule", "means"),
    [
        ({"kind": "futility", "margin": 2.0}, {"old": 10.0, "new": 9.0, "bad": 9.5}),
        ({"kind": "equivalence", "margin": 1.0, "metric": "cost"}, MEANS),
    ],
)
def test_every_kind_of_rule_can_be_met(rule: dict[str, Any], means: dict[str, float]) -> None:
    trial = play(create({"rules": {"r": rule | {"then": "stop"}}}), 40, means)
    assert trial.state().status == "stopped"
    assert verify(trial.store, NAME).ok


def test_a_cost_is_better_when_it_is_lower() -> None:
    """A new arm that costs 3 more is harmful in the cost, though its effect on it is positive."""
    trial = create({"rules": {"r": {"kind": "harm", "arm": "new", "metric": "cost", "then": "stop"}}})
    play(trial, 60, dict.fromkeys(MEANS, 10.0), costs={"new": 4.0})
    assert trial.state().status == "stopped"
    reach = the_claim(looks(trial)[-1])
    assert reach["low"] > 0


def test_alpha_is_divided_among_all_that_a_rule_has_in_view() -> None:
    rules = {
        "one": SUPERIOR,
        "any": {"kind": "superiority"},
        "groups": SUPERIOR | {"each": "group"},
        "users": {"kind": "harm", "each": "user", "confidence": 0.9},
        "futile": {"kind": "futility", "margin": 1.0, "each": "group"},
    }
    trial = play(create({"rules": rules}), 2)
    alpha = {claim["rule"]: claim["alpha"] for claim in looks(trial)[-1]["claims"]}
    found = {"one": 0.05, "any": 0.025, "groups": 0.025, "users": 0.1 / 12, "futile": 0.025}
    assert alpha == pytest.approx(found)
    claims = Counter(claim["rule"] for claim in looks(trial)[-1]["claims"])
    assert claims == {"one": 1, "any": 2, "groups": 2, "users": 12, "futile": 4}  # of two arms in two groups


def test_arms_that_come_later_have_no_share_until_the_rule_is_changed() -> None:
    trial = play(create({"rules": {"r": {"kind": "superiority"}}}), 2)
    trial.add_arm("newer")
    assert [claim.arm for claim in trial.look().claims] == ["new", "bad"]
    trial.change_rules({"rules": {"r": {"kind": "superiority", "margin": 0.5}}}, reason="an arm was added")
    assert [claim.arm for claim in trial.look().claims] == ["new", "bad", "newer"]


# When looks are taken


def test_a_look_is_taken_before_every_season_but_the_first_or_after_so_many_decisions() -> None:
    trial = play(create({"rules": {"r": SUPERIOR}}), 4)
    assert [(body["cause"], body["decisions"]) for body in looks(trial)] == [("season", n) for n in (6, 12, 18)]
    trial = create({"rules": {"r": SUPERIOR}, "looks": 10}, decisions="any number")
    for _ in range(35):
        trial.ask("u0")
    assert [body["decisions"] for body in looks(trial)] == [10, 20, 30]
    assert verify(trial.store, NAME).ok


def test_looks_by_hand_are_taken_by_nobody_else() -> None:
    trial = play(create({"rules": {"r": SUPERIOR | {"then": "stop"}}, "looks": "by hand"}), 12)
    assert looks(trial) == []
    (claim,) = trial.look(dry_run=True).claims
    assert claim.met
    assert looks(trial) == []
    assert trial.state().status == "running"
    taken = trial.look(actor="board")
    assert (taken.actor, taken.demands, taken.claims) == ("board", "stopped", [claim])
    assert trial.state().status == "stopped"
    assert trial.look().demands is None
    assert verify(trial.store, NAME).ok


def test_the_largest_number_of_seasons_and_of_decisions_is_kept() -> None:
    trial = play(create({"seasons": 3}), 3)
    events = trial.state().seq
    with pytest.raises(HaltedError, match="largest number of seasons"):
        trial.ask_many(episode=4, dry_run=True)
    assert (trial.state().seq, trial.state().status) == (events, "running"), "a dry run says so and records nothing"
    play(trial, 7)
    assert (trial.state().status, trial.state().episode.number) == ("stopped", 3)
    with pytest.raises(ConflictError, match="the largest number of seasons, 3, is reached"):
        trial.ask_many()
    few = create({"decisions": 4}, decisions="any number", enrolment="open")
    with pytest.raises(ConflictError, match="may have 4 decisions and has 0: 4 are left, and 6 were asked for"):
        few.ask_many()
    few.ask_many(["u0", "u1", "u2", "u3"])
    with pytest.raises(HaltedError, match="the largest number of decisions, 4, is reached"):
        few.ask("new")
    assert (few.state().status, "new" in few.state().users) == ("stopped", False), "who is refused has not joined"
    for one in (trial, few):
        assert verify(one.store, NAME).ok


# Arms that are dropped, and looks that are planned

HARM: dict[str, Any] = {"kind": "harm", "then": "drop"}


def dropping(trial: Trial) -> list[Look]:
    """Looks that dropped an arm."""
    with trial.reading() as (ledger, _):
        return [look for look in stopping.looks(ledger) if look.dropped]


@pytest.mark.parametrize("looks_at", ["season", 10])
def test_a_rule_drops_an_arm_and_the_trial_goes_on_with_the_others(store: Store, looks_at: Any) -> None:
    trial = play(create({"rules": {"r": HARM}, "looks": looks_at}, store), 30)
    state = trial.state()
    assert (state.status, state.retired, state.looked.demands) == ("running", ("bad",), ())
    (retired,) = trial.log(kinds=[kinds.RETIRED])
    assert retired.body == {"arm": "bad", "reason": "stopping rule 'r' is met: bad for all users"}
    after = [e for e in trial.log() if e.seq > retired.seq and e.kind == kinds.DECISION]
    assert after
    assert all(e.body["arm"] != "bad" for e in after)
    (look,) = dropping(trial)
    assert (look.event, look.dropped, look.demands) == (retired.seq - 1, ["bad"], None)
    assert verify(trial.store, NAME).ok
    log = list(trial.log())
    kept = [e for e in log if e.seq != retired.seq]
    proof = verify(stored(chained(kept)), NAME)
    assert any("demands an event of kind 'retired'" in fault for fault in proof.faults)


def test_a_trial_stops_where_every_arm_but_the_control_is_dropped() -> None:
    rule = {"kind": "futility", "margin": 2.0, "then": "drop"}
    trial = play(create({"rules": {"r": rule}}), 60, {"old": 10.0, "new": 9.0, "bad": 4.0})
    state = trial.state()
    assert (state.status, set(state.retired)) == ("stopped", {"new", "bad"})
    assert state.looked.halted == "no arm but the control is left"
    assert len(dropping(trial)) == 2, "each arm had its own claim"
    assert verify(trial.store, NAME).ok


def test_the_control_of_a_user_is_never_dropped() -> None:
    users = SPEC["users"] | {"own": {"control": "bad"}}
    trial = play(create({"rules": {"r": HARM | {"arm": "bad"}}}, users=users), 30)
    assert trial.state().looked.met["r"]
    assert (trial.state().status, trial.state().retired) == ("running", ())
    assert verify(trial.store, NAME).ok


def test_a_look_that_was_not_planned_does_not_count() -> None:
    """Effects are as clear as can be, and a look is taken by hand in the middle of every season."""
    rule = SUPERIOR | {"evidence": "spending", "then": "stop"}
    trial = create({"rules": {"r": rule}, "seasons": 4, "first": 3}, **EVEN)
    for season in range(3):
        play(trial, 1, HUGE, seed=season)
        trial.look()
    bodies = looks(trial)
    assert [body["planned"] for body in bodies] == [0, 0, 0]
    assert the_claim(bodies[-1])["distance"] < 0, "the range shows it"
    assert not any(the_claim(body)["met"] for body in bodies)
    assert "was not planned" in said_of(trial.look(dry_run=True).claims[0], "")
    with pytest.raises(HaltedError, match="stopping rule 'r' is met"):
        trial.open_episode()
    assert looks(trial)[-1]["planned"] == 1
    assert the_claim(looks(trial)[-1])["met"]
    assert verify(trial.store, NAME).ok
    trial.look()
    assert looks(trial)[-1]["planned"] == 0, "once"


# Floors that end


@pytest.mark.parametrize("each", [None, "group"])
def test_a_floor_ends_when_its_question_is_answered_for_whom_it_is(each: str | None) -> None:
    rule = SUPERIOR | ({} if each is None else {"each": each})
    floors = {"control": 0.3, "until": "r"}
    trial = create({"rules": {"r": rule}}, floors=floors)
    play(trial, 60)
    ended = [(body["episode"], who) for body in looks(trial) for who in body["ends"]]
    assert {who for _, who in ended} == ({"all:all users"} if each is None else {"group:hill", "group:dale"})
    when = {who: episode for episode, who in ended}
    for d in trial.decisions():
        episode = when["all:all users" if each is None else f"group:{'hill' if d.user < 'u3' else 'dale'}"]
        assert (d.probabilities["old"] >= 0.3 - 1e-12) is (d.episode <= episode)
    assert verify(trial.store, NAME).ok
    assert trial.status().floor_ended == (["all users"] if each is None else ["hill", "dale"])


# Changing the rules


def test_rules_change_only_with_a_reason_and_the_log_keeps_what_they_were() -> None:
    harm = {"kind": "harm", "arm": "bad"}
    trial = play(create({"rules": {"r": SUPERIOR, "keep": harm}}), 30)
    assert set(trial.state().looked.met) == {"r", "keep"}
    new = {"rules": {"r": SUPERIOR | {"margin": 100.0}, "keep": harm}}
    with pytest.raises(InputError, match="a reason is needed"):
        trial.change_rules(new, reason=" ")
    trial.change_rules(new, reason="the margin was a misprint")
    (event,) = trial.log(kinds=[kinds.RULES])
    assert event.body["was"]["rules"]["r"] == SUPERIOR
    assert list(trial.state().looked.met) == ["keep"]
    with pytest.raises(ConflictError, match="that the trial has"):
        trial.change_rules(new, reason="again")
    with pytest.raises(SpecError, match="unknown arm 'newest'"):
        trial.change_rules({"rules": {"r": {"kind": "harm", "arm": "newest"}}}, reason="x")
    trial.look()
    assert verify(trial.store, NAME).ok
    waiting = create({"rules": {"r": SUPERIOR}}, floors={"control": 0.1, "until": "r"})
    with pytest.raises(SpecError, match="unknown stopping rule 'r'"):
        waiting.change_rules({"seasons": 3}, reason="a floor waits for the rule")


def test_a_snapshot_holds_what_looks_have_found() -> None:
    floors = {"control": 0.3, "until": "r"}
    trial = play(create({"rules": {"r": SUPERIOR | {"each": "group"}}, "looks": 7}, floors=floors), 45)
    state = trial.state()
    restored = snapshots.restore(state.created, snapshots.take(state))
    assert restored is not None
    assert restored.looked == state.looked
    assert state.looked.ended


# Files


@pytest.mark.parametrize(
    ("stopping", "field", "message"),
    [
        ({"rules": {"r": {"kind": "better"}}}, "stopping.rules.r.kind", "superiority"),
        ({"rules": {"r": {"kind": "harm", "arm": "nwe"}}}, "stopping.rules.r.arm", "did you mean 'new'"),
        ({"rules": {"r": {"kind": "harm", "user": "u9"}}}, "stopping.rules.r.user", "unknown user 'u9'"),
        ({"rules": {"r": {"kind": "harm", "group": "sea"}}}, "stopping.rules.r.group", "Known: dale, hill"),
        ({"rules": {"r": {"kind": "harm", "group": "hill", "each": "user"}}}, "stopping.rules.r.each", "one of group"),
        ({"rules": {"r": {"kind": "futility"}}}, "stopping.rules.r.margin", "needs a margin above zero"),
        ({"rules": {"r": {"kind": "harm", "arm": "old"}}}, "stopping.rules.r.arm", "is the control itself"),
        ({"looks": "monthly"}, "stopping.looks", "'season', 'by hand', or a number of decisions"),
        ({"seasons": 0}, "stopping.seasons", "1"),
    ],
)
def test_rules_that_cannot_be_are_refused_with_their_place(stopping: Any, field: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        create(stopping)
    assert any(".".join(map(str, fault.path)) == field and message in fault.message for fault in caught.value.faults), (
        caught.value
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"floors": {"control": 0.1, "until": "q"}}, "unknown stopping rule 'q'"),
        ({"policy": {"name": "lin_ts"}, "floors": None}, "only samples"),
        ({"enrolment": "open"}, "with open enrolment"),
    ],
)
def test_rules_that_do_not_fit_the_rest_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        create({"rules": {"r": {"kind": "harm", "each": "user"}}}, **change)


# Forgeries


@pytest.fixture(scope="module")
def log() -> list[Any]:
    trial = play(create({"rules": {"r": SUPERIOR | {"then": "stop"}, "h": {"kind": "harm"}}}), 30)
    return list(trial.log())


def test_a_log_without_the_look_or_what_it_demanded_is_found(log: list[Any]) -> None:
    assert verify(stored(log), NAME).ok
    without_stop = [e for e in log if e.kind != kinds.STOPPED]
    assert verify(stored(chained(without_stop)), NAME).ok  # cut off at its end: the head and anchors tell
    first = next(i for i, e in enumerate(log) if e.kind == kinds.LOOK)
    proof = verify(stored(chained(log[:first] + log[first + 1 :])), NAME)
    assert any("a look at the stopping rules was due" in fault for fault in proof.faults)


FORGERIES: dict[str, Callable[[dict[str, Any], dict[str, Any]], object]] = {
    "low": lambda _, claim: claim.update(low=claim["low"] - 1e-6),
    "met": lambda _, claim: claim.update(met=False),
    "alpha": lambda _, claim: claim.update(alpha=0.1),
    "demands": lambda body, _: body.update(demands=[]),
    "planned": lambda body, _: body.update(planned=1),
    "ends": lambda body, _: body.update(ends=["all:all users"]),
    "cause": lambda body, _: body.update(cause="by hand"),
    "hash": lambda *_: None,
}


@pytest.mark.parametrize("change", FORGERIES)
def test_a_look_that_was_forged_is_found(log: list[Any], change: str) -> None:
    at = max(i for i, e in enumerate(log) if e.kind == kinds.LOOK)
    body = json.loads(log[at].text)
    FORGERIES[change](body, body["claims"][0])
    body["hash"] = look_hash(body) if change != "hash" else "0" * 64
    forged = [*log[:at], with_body(log[at], body), *log[at + 1 :]]
    # A look by hand might have been taken there, and the same would follow.
    assert verify(stored(chained(forged)), NAME).ok == (change == "cause")
