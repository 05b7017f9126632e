"""What every policy promises, whatever it is made of."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from drimed.errors import NumericalError
from drimed.models.mixed.learner import Field, FieldEvidence
from drimed.models.offer import Offer, Outcome, Shape
from drimed.numerics.arrays import FloatArray, IntArray
from drimed.policies.guards.margin import Tolerance
from drimed.policies.policy import Policy
from drimed.policies.protocol import AnyPolicy, from_arrays, to_arrays
from drimed.policies.registry import GUARDS, REGISTRY, make
from drimed.simulation.instances import Instance, draw_instance
from drimed.simulation.worlds import World
from tests.examples import same
from tests.worlds import SMALL, member, one, policy_draws, steps, world

POLICIES: dict[str, AnyPolicy] = {name: make(name) for name in REGISTRY}
POLICIES |= {f"{name}, printed": make(name, reading="printed") for name in ("published_dri_med", "published_dri_imed")}
POLICIES |= {
    "w_oful, discounted": make("w_oful", discount=0.9),
    "dri_med, discounted": make("dri_med", discount=0.9),
}
# Noise that is learned, from either feedback, with rules that mix, play one arm, or ask for the noise themselves.
LEARNED = ("dri_med", "dri_imed", "dri_med_reward", "w_oful", "v_ts", "w_ids")
POLICIES |= {f"{name}, learned noise": make(name, weighting="learned") for name in LEARNED}
POLICIES["dri_med, learned noise, forgetting"] = make("dri_med", weighting="learned", discount=0.8)
POLICIES["dri_med, learned noise, certain"] = make("dri_med", weighting="learned", guard="certain")
# Every guard, around a rule that mixes and around one that plays a single arm.
POLICIES |= {f"{name}, {guard}": make(name, guard=guard) for name in ("med", "w_oful") for guard in GUARDS}
S = 3  # worlds side by side
SEEDS = range(S)
ALL = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)


def distinct_parts() -> dict[str, AnyPolicy]:
    """One policy for each pair of rule and guard, and each kind of learner: weights alone change no arithmetic."""
    first: dict[tuple[str, str, str, bool], str] = {}
    for name, policy in POLICIES.items():
        traits = policy.traits
        learned = traits.learner if in_the_field(policy) else traits.weighting if traits.weighting == "learned" else ""
        first.setdefault((traits.rule, traits.guard, learned, "discount" in traits.learner), name)
    return {name: POLICIES[name] for name in first.values()}


def in_the_field(policy: AnyPolicy) -> bool:
    return isinstance(policy, Policy) and isinstance(policy.learner, Field)


DISTINCT = distinct_parts()
EACH = pytest.mark.parametrize("policy", DISTINCT.values(), ids=DISTINCT)


def some_worlds(episodes: int = 3, shape: Shape = SMALL, **setting: Any) -> World:
    return world(
        episodes=episodes, seeds=SEEDS, instances=[draw_instance(s, shape) for s in SEEDS], shape=shape, **setting
    )


def assert_distribution(p: FloatArray) -> None:
    assert (p >= 0).all()
    np.testing.assert_allclose(p.sum(-1), 1.0, atol=1e-12)


def stored_and_loaded(policy: AnyPolicy, state: Any, shape: Shape, batch: tuple[int, ...]) -> Any:
    file = io.BytesIO()
    arrays: dict[str, Any] = dict(to_arrays(state))
    np.savez(file, **arrays)
    file.seek(0)
    with np.load(file) as stored:
        return from_arrays(policy.init(shape, batch), dict(stored))


@ALL
def test_probabilities_are_a_distribution_and_the_propensity_is_exact_or_unknown(policy: AnyPolicy) -> None:
    sampled = getattr(getattr(policy, "rule", None), "randomisation", "closed form") == "sampled"
    for step in steps(policy, some_worlds()):
        p, action = step.decision.probabilities, step.decision.action
        assert p.shape == (S, 1, SMALL.K)
        assert action.shape == (S, 1)
        assert_distribution(p)
        chosen = np.take_along_axis(p, action[..., None], -1)[..., 0]
        assert (chosen > 0).all()
        if sampled:
            assert np.isnan(step.decision.propensity).all()
        else:
            assert np.array_equal(step.decision.propensity, chosen)


@ALL
def test_unavailable_arms_have_no_mass_and_are_never_chosen(policy: AnyPolicy) -> None:
    it = some_worlds(episodes=4)
    decisions = 4 * SMALL.H
    masks = np.random.default_rng(0).random((decisions, S, SMALL.K)) < 0.5
    for n in range(decisions):  # a control without available arms would be refused
        masks[n] |= it.control[n % SMALL.H] > 0
    assert not masks.all()
    for step in steps(policy, it, masks=masks.astype(np.float64)):
        mask = masks[step.number]
        assert not step.decision.probabilities[:, 0][~mask].any()
        assert_distribution(step.decision.probabilities)
        assert np.take_along_axis(mask, step.decision.action, -1).all()


@EACH
def test_a_batch_is_its_members_bit_for_bit(policy: AnyPolicy) -> None:
    """In the mixed model the last bits of covariances may differ, and with them probabilities that are not counted."""
    alone: list[Any] = [policy.init(SMALL) for _ in SEEDS]
    for step in steps(policy, some_worlds()):
        for s in SEEDS:
            if step.offers is not None:
                alone[s] = policy.begin_episode(alone[s], member(step.offers, s))
            offer = member(step.offer, s)
            decision = policy.decide(alone[s], offer, step.draws[s])
            rounding = 1e-12 if in_the_field(policy) else 0.0
            np.testing.assert_allclose(
                decision.probabilities, step.decision.probabilities[s], rtol=rounding, atol=rounding
            )
            assert decision.action == step.decision.action[s]
            assert decision.reason_code == step.decision.reason_code[s]
            alone[s] = policy.update(alone[s], offer, decision, member(step.outcome, s))
        together = to_arrays(step.after)
        for s in SEEDS:
            for name, array in to_arrays(alone[s]).items():
                mine = together[name] if array.shape == together[name].shape else together[name][s]
                assert np.array_equal(array, mine), name


@EACH
def test_one_offer_may_serve_a_whole_batch(policy: AnyPolicy) -> None:
    """As many members as arms, so that the two cannot be told apart by their number."""
    members, rng = SMALL.K, np.random.default_rng(1)
    block = next(world(seeds=[0]).blocks())
    offers = member(block.offers(0), 0)
    together: Any = policy.begin_episode(policy.init(SMALL, (members,)), offers)
    alone: list[Any] = [policy.begin_episode(policy.init(SMALL), offers) for _ in range(members)]
    for user in range(SMALL.H):
        offer, draws = member(block.offers(0, one(user)), 0), rng.random((members, 1, policy.draws_needed(SMALL)))
        decision = policy.decide(together, offer, draws)
        vector = rng.standard_normal((members, 1, SMALL.M))
        assert offer.preference is not None
        together = policy.update(together, offer, decision, Outcome(vector @ offer.preference[0], vector))
        for s in range(members):
            mine = policy.decide(alone[s], offer, draws[s])
            np.testing.assert_allclose(decision.probabilities[s], mine.probabilities, atol=1e-12)
            assert decision.action[s] == mine.action
            outcome = Outcome(vector[s] @ offer.preference[0], vector[s])
            alone[s] = policy.update(alone[s], offer, mine, outcome)
            np.testing.assert_allclose(policy.theta(together)[s], policy.theta(alone[s]), rtol=1e-9, atol=1e-12)


@EACH
def test_a_stored_state_decides_and_learns_as_before(policy: AnyPolicy) -> None:
    it = some_worlds()
    for step in steps(policy, it):
        loaded = stored_and_loaded(policy, step.before, it.shape, (S,))
        assert same(loaded, step.before)
        assert same(policy.decide(loaded, step.offer, step.draws), step.decision)
        assert same(policy.update(loaded, step.offer, step.decision, step.outcome), step.after)


@EACH
def test_deciding_and_updating_leave_the_old_state_alone(policy: AnyPolicy) -> None:
    it = some_worlds(episodes=2)
    for step in steps(policy, it):
        kept = {name: array.copy() for name, array in to_arrays(step.before).items()}
        policy.decide(step.before, step.offer, step.draws)
        policy.update(step.before, step.offer, step.decision, step.outcome)
        policy.begin_episode(step.before, step.offers or next(it.blocks(1)).offers(0))
        for name, array in to_arrays(step.before).items():
            assert np.array_equal(array, kept[name]), name


@EACH
def test_giving_out_and_learning_can_be_apart(policy: AnyPolicy) -> None:
    for step in steps(policy, some_worlds(episodes=2)):
        given = policy.commit(step.before, step.offer, step.decision)
        assert np.array_equal(policy.theta(given), policy.theta(step.before))
        assert same(policy.observe(given, step.offer, step.decision.action, step.outcome), step.after)


@pytest.mark.parametrize(
    "policy",
    [p for p in POLICIES.values() if isinstance(p, Policy)],
    ids=[n for n, p in POLICIES.items() if isinstance(p, Policy)],
)
def test_an_episode_decided_at_once_is_each_user_decided_from_one_state(policy: Policy) -> None:
    it = some_worlds(episodes=3)
    state = policy.init(it.shape, (S,))
    for block in it.blocks():
        draws = policy_draws(it, block.start, block.episodes, policy.draws_needed(it.shape))
        for episode in range(block.episodes):
            offers = block.offers(episode)
            state = policy.begin_episode(state, offers)
            together = policy.decide(state, offers, np.swapaxes(draws[episode], 0, 1))
            outcome = block.respond(episode, together.action)
            committed = policy.commit(state, offers, together)
            learned = policy.observe(committed, offers, together.action, outcome)
            alone_learned = committed
            for user in range(SMALL.H):
                offer = block.offers(episode, one(user))
                alone = policy.decide(state, offer, draws[episode, user][:, None])
                assert np.array_equal(alone.probabilities, together.probabilities[:, one(user)])
                if policy.balances:  # arms of one request are spread evenly: only the chances are the same
                    alone = replace(alone, action=together.action[:, one(user)])
                assert np.array_equal(alone.action, together.action[:, one(user)])
                assert np.array_equal(alone.reason_code, together.reason_code[:, one(user)])
                mine = block.respond(episode, alone.action, one(user))
                assert outcome.reward is not None
                assert mine.reward is not None
                assert np.array_equal(mine.reward, outcome.reward[:, one(user)])
                alone_learned = policy.observe(alone_learned, offer, alone.action, mine)
            np.testing.assert_allclose(policy.theta(learned), policy.theta(alone_learned), rtol=1e-9, atol=1e-12)
            assert learned.round == state.round + SMALL.H
            assert (learned.pulls.sum(-1) == learned.round - 1).all()
            state = learned


@pytest.mark.parametrize("name", ["published_dri_med", "published_dri_imed"])
@pytest.mark.parametrize("reading", ["code", "printed"])
def test_the_published_algorithms_decide_an_episode_at_once_as_one_user_after_the_other(
    name: str, reading: str
) -> None:
    policy, it = make(name, reading=reading, initial_dual=2.0), some_worlds(episodes=3)
    state: Any = policy.init(it.shape, (S,))
    for block in it.blocks():
        draws = policy_draws(it, block.start, block.episodes, policy.draws_needed(it.shape))
        for episode in range(block.episodes):
            offers = block.offers(episode)
            state = alone = policy.begin_episode(state, offers)
            together = policy.decide(state, offers, np.swapaxes(draws[episode], 0, 1))
            for user in range(SMALL.H):
                mine = policy.decide(alone, block.offers(episode, one(user)), draws[episode, user][:, None])
                alone = policy.commit(alone, block.offers(episode, one(user)), mine)
                assert np.array_equal(mine.probabilities, together.probabilities[:, one(user)])
                assert np.array_equal(mine.action, together.action[:, one(user)])
                assert np.array_equal(mine.reason_code, together.reason_code[:, one(user)])
            state = policy.commit(state, offers, together)
            assert same(state, alone)
            outcome = block.respond(episode, together.action)
            state = policy.observe(state, offers, together.action, outcome)
            for user in range(SMALL.H):
                own, action = block.offers(episode, one(user)), together.action[:, one(user)]
                alone = policy.observe(alone, own, action, block.respond(episode, action, one(user)))
            assert same(state, alone)


def with_maps(instance: Instance, maps: FloatArray) -> Instance:
    return replace(instance, maps=maps)


def awkward() -> dict[str, Instance]:
    plain = draw_instance(5, SMALL)
    twins, parallel, void = (plain.maps.copy() for _ in range(3))
    twins[1:] = twins[0]
    parallel[:] = plain.maps[0] * np.array([1.0, -1.0, 0.5, 2.0])[:, None, None]
    void[2] = 0.0
    thin = plain.covariances.copy()
    thin[0] = np.diag([1.0, 0.0, 0.0])
    return {
        "one arm": draw_instance(5, Shape(d=3, K=1, M=3, H=2)),
        "fewer arms than features": draw_instance(5, Shape(d=6, K=2, M=3, H=2)),
        "one feature": draw_instance(5, Shape(d=1, K=4, M=3, H=2)),
        "one metric": draw_instance(5, Shape(d=3, K=4, M=1, H=2)),
        "more arms than pulls": draw_instance(5, Shape(d=2, K=40, M=2, H=2)),
        "identical arms": with_maps(plain, twins),
        "parallel arms": with_maps(plain, parallel),
        "an arm without features": with_maps(plain, void),
        "no noise in a direction": replace(plain, covariances=thin),
        "tiny features": with_maps(plain, 1e-8 * plain.maps),
        "huge features": with_maps(plain, 1e6 * plain.maps),
    }


AWKWARD = {name: world(instances=[instance], seeds=[0, 1], episodes=3) for name, instance in awkward().items()}
AWKWARD |= {f"noise of {size}": some_worlds(reward_noise=size) for size in (1e-8, 1e8)}


@EACH
@pytest.mark.parametrize("problem", AWKWARD.values(), ids=AWKWARD)
def test_awkward_problems_are_no_problem(policy: AnyPolicy, problem: World) -> None:
    for step in steps(policy, problem):
        assert_distribution(step.decision.probabilities)
        for name, array in to_arrays(step.after).items():
            assert np.isfinite(array).all(), name


@pytest.mark.parametrize("name", ["med", "w_ts", "w_oful", "dri_med", "dri_imed", "lin_med"])
def test_a_discount_near_one_decides_nearly_as_without(name: str) -> None:
    plain, near = make(name), make(name, discount=0.999999)
    state: Any = near.init(SMALL, (S,))
    for step in steps(plain, some_worlds(episodes=6)):
        if step.offers is not None:
            state = near.begin_episode(state, step.offers)
        p = near.decide(state, step.offer, step.draws).probabilities
        np.testing.assert_allclose(p, step.decision.probabilities, atol=1e-3)
        state = near.update(state, step.offer, step.decision, step.outcome)
        np.testing.assert_allclose(near.theta(state), plain.theta(step.after), atol=1e-4)


LEARNED_PARTS = ("evidence", "ridge")  # of a composed policy's state, and of a published one's


def evidence(state: Any) -> dict[str, Any]:
    """What was learned from outcomes, without what only says when to fit again."""
    if isinstance(getattr(state, "evidence", None), FieldEvidence):
        return {"theta": state.evidence.fitted.theta}
    passing = ("age", "changes", "fitted")
    return {
        name: array
        for name, array in to_arrays(state).items()
        if name.split(".")[0] in LEARNED_PARTS and name.split(".")[-1] not in passing
    }


def assert_same_evidence(one: Any, other: Any, *, rtol: float) -> None:
    mine, its = evidence(one), evidence(other)
    assert mine.keys() == its.keys()
    for name in mine:
        scale = float(np.abs(its[name]).max(initial=0.0))
        np.testing.assert_allclose(mine[name], its[name], rtol=rtol, atol=rtol * max(scale, 1e-3), err_msg=name)


# Learned noise forgets the order of the data when it is fitted until it stands still, which is to 1e-8 of the model.
# Rules and guards learn nothing from outcomes: one policy for each learner is enough.
SETTLING = {policy.traits.learner: policy for policy in reversed(POLICIES.values())}
ONCE = pytest.mark.parametrize("policy", SETTLING.values(), ids=SETTLING)


def tolerance_of(policy: AnyPolicy) -> float:
    return 1e-5 if policy.traits.weighting == "learned" else 1e-8


def reported(it: World) -> Iterator[tuple[Offer | None, tuple[Offer, IntArray, Outcome], int]]:
    """Each report of a run whose arms come in turn: all offers where an episode begins, and the episodes since."""
    for block in it.blocks():
        for episode in range(block.episodes):
            for user in range(SMALL.H):
                offer, action = block.offers(episode, one(user)), np.arange(user, user + it.batch)[:, None] % SMALL.K
                report = (offer, action, block.respond(episode, action, one(user)))
                yield None if user else block.offers(episode), report, it.episodes - 1 - episode


@ONCE
def test_an_outcome_that_comes_late_teaches_what_it_would_have_taught_in_time(policy: AnyPolicy) -> None:
    """Two episodes whose outcomes all come in the third, the newest first."""
    in_time: Any = policy.init(SMALL, (S,))
    late, waiting = in_time, []
    for offers, report, since in reported(some_worlds(episodes=3)):
        if offers is not None:
            in_time, late = policy.begin_episode(in_time, offers), policy.begin_episode(late, offers)
        in_time = policy.observe(in_time, *report)
        waiting.append((*report, since))
    for each in reversed(waiting):
        late = policy.observe(late, *each)
    assert_same_evidence(policy.settle(late), policy.settle(in_time), rtol=tolerance_of(policy))


@ONCE
def test_an_outcome_can_be_taken_back_episodes_later(policy: AnyPolicy) -> None:
    with_it: Any = policy.init(SMALL, (S,))
    without, first = with_it, None
    for offers, report, since in reported(some_worlds(episodes=3)):
        if offers is not None:
            with_it, without = policy.begin_episode(with_it, offers), policy.begin_episode(without, offers)
        with_it = policy.observe(with_it, *report)
        if first is None:
            first = (*report, since)
        else:
            without = policy.observe(without, *report)
    assert first is not None
    assert not np.allclose(policy.theta(with_it), policy.theta(without), rtol=1e-6)
    back = policy.forget(with_it, *first)
    if tolerance_of(policy) == 1e-8:
        assert_same_evidence(back, without, rtol=1e-8)
    else:  # the map of an arm that was once seen stays known
        settled = policy.theta(policy.settle(back)), policy.theta(policy.settle(without))
        np.testing.assert_allclose(*settled, rtol=1e-5, atol=1e-8)
    assert np.array_equal(back.pulls, with_it.pulls)


@EACH
def test_settling_twice_is_settling_once(policy: AnyPolicy) -> None:
    for step in steps(policy, some_worlds(episodes=2)):
        settled = policy.settle(step.after)
        assert_same_evidence(policy.settle(settled), settled, rtol=1e-5)
        learner = getattr(policy, "learner", None)
        if not isinstance(learner, Field) and policy.traits.weighting != "learned":
            assert settled is step.after


@ONCE
def test_old_outcomes_added_to_an_aged_start_are_the_evidence_of_the_whole_run(policy: AnyPolicy) -> None:
    """As a trial does it when taking an outcome out has cost too many digits."""
    state, told = policy.init(SMALL), []
    for offers, (offer, action, outcome), since in reported(world(seeds=[0], episodes=3)):
        if offers is not None:
            state = policy.begin_episode(state, member(offers, 0))
        told.append((member(offer, 0), action[0], member(outcome, 0), since))
        state = policy.observe(state, *told[-1][:3])
    fresh = policy.init(SMALL, episodes=3)
    for each in told:
        fresh = policy.observe(fresh, *each)
    again = policy.with_evidence(state, fresh)
    assert_same_evidence(policy.settle(again), policy.settle(state), rtol=tolerance_of(policy))
    kept = {name: array for name, array in to_arrays(state).items() if name.split(".")[0] not in LEARNED_PARTS}
    for name, array in kept.items():
        assert np.array_equal(to_arrays(again)[name], array), name


@ONCE
def test_only_taking_out_nearly_everything_loses_digits(policy: AnyPolicy) -> None:
    block = next(world(seeds=[0], episodes=1).blocks())
    state = policy.begin_episode(policy.init(SMALL), member(block.offers(0), 0))
    for user in range(SMALL.H):
        action = np.array([user % SMALL.K])
        outcome = member(block.respond(0, action[None], one(user)), 0)
        state = policy.observe(state, member(block.offers(0, one(user)), 0), action, outcome)
    offer, mistyped = member(block.offers(0, one(0)), 0), Outcome(np.array([1e12]), np.full((1, SMALL.M), 1e12))
    for about, lost in ((member(block.respond(0, np.array([[0]]), one(0)), 0), False), (mistyped, True)):
        more = policy.observe(state, offer, np.array([0]), about)
        try:
            assert policy.lost_digits(more, policy.forget(more, offer, np.array([0]), about)) is lost
        except NumericalError:  # it may also say so itself
            assert lost


@ALL
def test_contexts_are_needed_at_opening_exactly_where_the_state_depends_on_them(policy: AnyPolicy) -> None:
    state = policy.init(SMALL)
    block = next(world(seeds=[0], episodes=2).blocks())
    first, second = (policy.begin_episode(state, member(block.offers(e), 0)) for e in range(2))
    assert same(first, second) is not policy.needs_contexts_at_opening
    if not policy.needs_contexts_at_opening:
        assert same(policy.begin_episode(state, Offer(features=np.zeros((1, 1, 1)), control=np.ones((1, 1)))), first)


@EACH
def test_effects_are_estimates_against_the_control_with_intervals_that_widen_with_confidence(policy: AnyPolicy) -> None:
    for step in steps(policy, some_worlds(episodes=2)):
        found = policy.effects(step.after, step.offer, 0.95)
        if policy.traits.guard == "published":
            assert found is None
            continue
        assert found is not None
        estimate, half, below = found
        assert np.array_equal(half, below)
        w = step.offer.features - step.offer.control_features[..., None, :]
        if isinstance(policy, Policy) and not in_the_field(policy):
            np.testing.assert_allclose(estimate, np.matvec(w, policy.theta(step.after)[:, None]), atol=1e-12)
        assert half.shape == estimate.shape == (S, 1, SMALL.K)
        for wider in (0.99, "anytime"):
            more = policy.effects(step.after, step.offer, wider)
            assert more is not None
            assert (more[1] >= half).all()
            assert more[1].max() > half.max()


@EACH
def test_effects_of_many_users_are_those_of_each(policy: AnyPolicy) -> None:
    block = next(world(seeds=[0], episodes=1).blocks())
    state = policy.begin_episode(policy.init(SMALL), member(block.offers(0), 0))
    together = policy.effects(state, member(block.offers(0), 0), 0.9)
    for user in range(SMALL.H):
        alone = policy.effects(state, member(block.offers(0, one(user)), 0), 0.9)
        assert (alone is None) == (together is None)
        if alone is not None and together is not None:
            assert np.array_equal(alone[0][0], together[0][user])
            assert np.array_equal(alone[1][0], together[1][user])


@ALL
def test_a_regression_for_inference_is_weighted_and_on_vectors(policy: AnyPolicy) -> None:
    state = policy.init(SMALL)
    found = policy.inference(state)
    if in_the_field(policy):  # its regression is not on the features of the offers
        assert found is None
        return
    assert (found is not None) == (policy.traits.feedback == "vector" and policy.traits.weighting != "none")
    if found is not None:
        assert np.array_equal(found[0].theta, policy.theta(state))
        assert (found[1] is not None) == (policy.traits.weighting == "learned")


@ALL
def test_a_policy_says_what_it_is(policy: AnyPolicy) -> None:
    traits = policy.traits
    assert all((traits.learner, traits.rule, traits.guard, traits.promise))
    assert (traits.tolerance is None) == (traits.guard == "off")
    assert traits.tolerance is None or isinstance(traits.tolerance, Tolerance)
    assert ("confidence" in traits.settings) == (traits.confidence is not None)
    assert traits.noise_bound > 0
