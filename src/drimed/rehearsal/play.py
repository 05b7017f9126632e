"""Simulated trials in batch: the policy of the trial file, in many worlds side by side.

The functions that decide here are the ones that decide live: a trial with the seed and the outcomes of one of these
worlds takes the same decisions. A season is decided as a whole; its outcomes are told at its end, or so many seasons
later. Shapes: S trials, L seasons, n decisions of a season, H users, K arms.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import ndtri

from drimed import streams
from drimed.evaluation import propensity_effects, regression_effects
from drimed.models.mixed import effects
from drimed.models.mixed.effects import ALPHA, LIKELY, is_confirmed
from drimed.models.mixed.learner import Field
from drimed.models.offer import Floor, Offer, Outcome
from drimed.numerics import probability
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray, pick
from drimed.policies.guards.base import UNCHANGED, Draw
from drimed.policies.policy import Policy
from drimed.policies.protocol import AnyPolicy
from drimed.policies.rules.base import Floors
from drimed.rehearsal.designs import CONTROL, FIXED, POLICY, UNIFORM, Design
from drimed.rehearsal.scenarios import SimulatedTrials
from drimed.simulation.trial_world import Response
from drimed.trial import events as kinds
from drimed.trial import stopping
from drimed.trial.dataset import Dataset, outcome_columns
from drimed.trial.look_history import BY_HAND, LookHistory, due, has_floor, most_decisions
from drimed.trial.spec import StoppingRule
from drimed.trial.state import Counts, Episode, TrialState

# Looks at a batch of simulated trials after a season: what each would say of its arms.

ONE_SIDE = 0.5 + LIKELY / 2
Together = tuple[FloatArray, FloatArray, FloatArray, FloatArray, BoolArray]  # mean to stands of a look: (S, K) each


@dataclass(frozen=True)
class Look:
    """After one season."""

    estimate: FloatArray  # (S, H, K), effects on the reward
    half: FloatArray  # (S, H, K), of the likely range
    mean: FloatArray  # (S, K), of all users together
    likely: FloatArray  # (S, K), half of its likely range
    low: FloatArray  # (S, K), of its range at all times
    high: FloatArray  # (S, K)
    stands: BoolArray  # (S, K), whether its likely range says the same allowing for the number of arms
    confirmed: BoolArray  # (S, K), whether enough seasons have told of arm and control for the model to say anything


def weights(offers: Offer, some: BoolArray | None = None) -> FloatArray:
    """Of each user in the mean effect of an arm: (H, K), over those who can get it, or over `some` (H,) of them."""
    control = offers.control[0]
    mine = np.ones(len(control), bool) if some is None else some
    possible = np.ones(control.shape, bool) if offers.available is None else offers.available[0]
    found = np.zeros(control.shape)
    found[mine] = effects.weights(possible[mine])
    return found


def look(policy: AnyPolicy, state: Any, offers: Offer) -> Look:
    """At a settled state, of offers (S, H) in a typical context; NaN and infinite where a policy estimates no effects.

    Policies of the published algorithms estimate reward over noise.
    """
    if not isinstance(policy, Policy):
        shape = offers.control.shape
        nothing, endless = np.full(shape, np.nan), np.full(shape, np.inf)
        wide = endless[:, 0]
        all_of_them = np.ones(wide.shape, bool)
        return Look(nothing, endless, nothing[:, 0], wide, -wide, wide, all_of_them, all_of_them)
    estimate, half = policy.effects(state, offers, ONE_SIDE)
    together = (_field if isinstance(policy.learner, Field) else _regression)(policy, state, offers)
    confirmed = np.broadcast_to(is_confirmed(policy.learner, state.evidence, offers), estimate.shape).all(-2)
    return Look(estimate, half, *together, np.asarray(confirmed))


def _field(policy: Policy, state: Any, offers: Offer) -> Together:
    """All users together: the mean of their rows on what lasts."""
    learner: Any = policy.learner
    possible = np.ones(offers.control.shape, bool) if offers.available is None else offers.available
    found = effects.together(effects.know(learner, state.evidence, offers), offers, possible).at((..., 0))
    low, high = found.at_all_times(ALPHA)
    arms = effects.compared(offers.control, offers.available)
    return found.mean, found.beyond(ONE_SIDE), low, high, effects.stands(found, None, arms, 1)


def _regression(policy: Policy, state: Any, offers: Offer) -> Together:
    """The same for the paper's model: its guaranteed range, as a report has it."""
    fit = policy.fit(state)
    found = regression_effects.group_effects(fit, offers, range(offers.control.shape[-2]))
    share = np.asarray(ndtri(ONE_SIDE) * fit.noise_bound / fit.radius)[..., None]
    half = share * (found.estimate - found.low)
    return found.estimate, half, found.low, found.high, np.ones(half.shape, bool)


# The stopping rules of the trial file in simulated trials: each is looked at as a live trial looks at itself.


@dataclass
class Watch:
    """What looks have found in each trial so far."""

    world: SimulatedTrials
    looked: list[LookHistory] = field(default_factory=list)  # S
    played: IntArray = field(init=False)  # (S,), seasons before a rule or a limit ended the trial, or all
    met: list[BoolArray] = field(default_factory=list)  # (S, R) after each look
    wrong: list[BoolArray] = field(default_factory=list)  # (S, R), with a claim that is false
    said: dict[int, dict[str, Any]] = field(default_factory=dict)  # trial -> what its last look said

    def __post_init__(self) -> None:
        S = len(self.world.seeds)
        self.looked = [self.world.population.state.looked] * S
        self.played = np.full(S, self.world.setting.seasons)

    @property
    def rules(self) -> dict[str, StoppingRule]:
        """By name, in the order of the file."""
        stopping = self.world.population.state.spec.stopping
        return {} if stopping is None else dict(stopping.rules)

    @property
    def acts(self) -> bool:
        """Whether anything may end in these trials."""
        return self.world.population.state.spec.stopping is not None

    def look(self, seasons: Sequence[Season], learned: Any) -> None:
        """After the last of these seasons, at what was learned by then."""
        now, S = seasons[-1].number, len(self.world.seeds)
        met, wrong = np.zeros((S, len(self.rules)), bool), np.zeros((S, len(self.rules)), bool)
        if self.met:
            met, wrong = self.met[-1].copy(), self.wrong[-1].copy()
        if self.acts:
            told = self._told(seasons)
            for s in np.flatnonzero(self.played > now):
                self._look(int(s), now, told, learned, met[s], wrong[s])
        self.met.append(met)
        self.wrong.append(wrong)

    def floors(self, season: int) -> BoolArray:
        """Whether the floor still holds for each decision of a season: (S, n)."""
        crowd = self.world.population
        at, state = crowd.user(season), crowd.states[season]
        left = np.ones((len(self.looked), len(crowd.users)), bool)
        for s, looked in enumerate(self.looked):
            if looked.ended:
                own = replace(state, looked=looked)
                left[s, : len(state.users)] = [has_floor(own, user) for user in state.users]
        return np.asarray(left[:, at])

    def _look(self, s: int, now: int, told: _Told, learned: Any, met: BoolArray, wrong: BoolArray) -> None:
        """Of one trial, before its next season, or by hand at its end."""
        state = replace(
            self.world.population.states[now],
            learned=_member(learned, self.world.population.state.learned, s),
            counts=Counts(pending=int((~told.there[s]).sum()), complete=int(told.there[s].sum())),
            episode=Episode(now + 1),
            looked=self.looked[s],
        )
        last = now == self.world.setting.seasons - 1
        seen = told.gathered(state, s) if stopping.needs_data(state) else None
        done: set[str] = set()
        while (cause := BY_HAND if last else due(state, opens=True)) is not None and cause not in done:
            done.add(cause)
            body = self.said[s] = stopping.evaluate_rules(state, seen, cause)
            state = replace(state, looked=state.looked.after(now + 1, body))
            for r, (name, said) in enumerate(zip(self.rules, body["rules"], strict=True)):
                claims = [claim for claim in said["claims"] if claim["met"]]
                met[r] |= bool(claims)
                wrong[r] |= any(self._is_false(s, name, claim) for claim in claims)
            if body["demands"] is not None and body["demands"]["kind"] == kinds.STOPPED:
                self.played[s] = now + 1
                break
        self.looked[s] = replace(state.looked, demands=None)
        most, seasons = most_decisions(state), self.world.population.seasons
        if not last and most is not None and state.counts.decisions + len(seasons[now + 1]) > most:
            self.played[s] = now + 1  # no room for a whole season

    def _is_false(self, s: int, name: str, claim: dict[str, Any]) -> bool:
        view, on = self.world.population.state.looked.scopes[name], self.rules[name].metric
        arms = [self.world.population.state.problem.arm(found["arm"]) for found in claim["ranges"]]
        truth = self._truth(view.by, claim["who"])[s, arms, 0 if on is None else 1 + self._metrics.index(on)]
        return bool((view.question(self.rules[name]).distance(truth, truth) >= 0).any())

    def _truth(self, by: str, who: str) -> FloatArray:
        """The effects for those that a claim is about; of somebody whom no look is about, for all: (S, K, 1 + M)."""
        if (by, who) not in self._truths:
            looked = self.world.population.looked_at
            mine = np.array([by == "all" or who == (p.group if by == "group" else p.user) for p in looked])
            some = mine if mine.any() else np.ones(len(looked), bool)
            w = weights(self.world.typical, some)
            self._truths[by, who] = np.einsum("hk,shko->sko", w, self.world.effects)
        return self._truths[by, who]

    @cached_property
    def _truths(self) -> dict[tuple[str, str], FloatArray]:
        return {}

    @property
    def _metrics(self) -> list[str]:
        return self.world.population.state.problem.metrics

    def _told(self, seasons: Sequence[Season]) -> _Told:
        """Decisions so far; what is told late is not there yet."""
        world, now = self.world, seasons[-1].number
        last = now == world.setting.seasons - 1
        there = [s.told.observed & (last or s.number <= now - world.setting.delay) for s in seasons]

        def joined(values: list[Any]) -> Any:
            return np.concatenate(values, 1)

        return _Told(
            episode=np.concatenate([np.full(s.action.shape[1], s.number + 1) for s in seasons]),
            slot=np.concatenate([world.population.user(s.number) for s in seasons]),
            arm=joined([s.action for s in seasons]),
            probabilities=joined([s.probabilities for s in seasons]),
            y=joined([s.told.y for s in seasons]),
            control=joined([s.told.control for s in seasons]),
            there=joined(there),
            exact=all(s.exact for s in seasons),
        )


@dataclass(frozen=True)
class _Told:
    """The decisions of all trials so far."""

    episode: IntArray  # (n,), from 1
    slot: IntArray  # (n,)
    arm: IntArray  # (S, n)
    probabilities: FloatArray  # (S, n, K)
    y: FloatArray  # (S, n, M), in the units of the metrics
    control: FloatArray  # (S, n, M)
    there: BoolArray  # (S, n)
    exact: bool

    def gathered(self, state: TrialState, s: int) -> Dataset:
        """Those of one trial, as a live one gathers its own."""
        n, there = len(self.slot), self.there[s][:, None]
        y, control = (np.where(there, values[s], np.nan) for values in (self.y, self.control))
        return Dataset(
            state=state,
            number=np.arange(1, n + 1),
            episode=self.episode,
            slot=self.slot,
            arm=self.arm[s],
            probabilities=self.probabilities[s],
            propensity=pick(self.probabilities[s], self.arm[s]) if self.exact else np.full(n, np.nan),
            held=np.zeros(n, bool),
            context=None,
            standing=np.zeros(n, np.intp),
            block=np.zeros(n, np.intp),
            **outcome_columns(state, self.slot, y, control),
        )


def _member(batch: Any, like: Any, s: int) -> Any:
    """One member of a batch of states; `like` is a state without a batch, which tells what belongs to all members."""
    if is_dataclass(batch) and not isinstance(batch, type):
        parts = {f.name: _member(getattr(batch, f.name), getattr(like, f.name), s) for f in fields(batch)}
        return type(batch)(**parts)
    return batch[s] if isinstance(batch, np.ndarray) and batch.ndim > np.ndim(like) else batch


@dataclass(frozen=True)
class Season:
    """What happened in one season of all trials."""

    number: int
    action: IntArray  # (S, n)
    probabilities: FloatArray  # (S, n, K)
    changed: FloatArray  # (S, n), whether the guard intervened
    means: FloatArray  # (S, n, K), the mean reward of each arm
    reward: FloatArray  # (S, n), as measured; NaN where it never came
    told: Response
    exact: bool  # whether the probabilities are those of the draw
    offers: Offer
    look: Look | None


def play(
    world: SimulatedTrials,
    design: Design,
    *,
    looks: Container[int] | None = None,
    watch: Watch | None = None,
) -> Iterator[Season]:
    """Season after season; the trials are looked at after those in `looks`, or (None) after all.

    `watch` is told of every look, and says for whom the floor has ended.
    """
    crowd = world.population
    state = crowd.state
    policy = state.policy
    learned = policy.init(state.problem.shape, (len(world.seeds),))
    draws = world.policy_draws(policy.draws_needed(state.problem.shape) if design.learns else 1)
    waiting: list[tuple[int, Offer, IntArray, Outcome]] = []
    first, L = 0, world.setting.seasons
    past: list[Season] = []  # kept for those who watch
    for season in range(L):
        offers = world.offers(season)
        opening = world.opening(season) if policy.needs_contexts_at_opening else offers
        learned = policy.begin_episode(learned, opening)
        means = world.means(season, offers)
        if design.allocation == POLICY:
            holds = None if watch is None else watch.floors(season)
            learned, decision = _decided(world, learned, offers, season, first, draws, holds)
        else:
            decision = _by_design(world, design, offers, season, draws[:, first:])
        told = world.respond(season, decision.action, means)
        waiting.append((season, offers, decision.action, _outcome(state, offers, told)))
        last = season == L - 1
        while waiting and (last or waiting[0][0] <= season - world.setting.delay):
            then, *_ = about = waiting.pop(0)
            learned = policy.observe(learned, *about[1:], season - then)
        first += decision.action.shape[1]
        taken = None
        if last or looks is None or season in looks:
            learned = policy.settle(learned)
            taken = look(policy, learned, world.typical)
        p = np.stack([q.preference for q in crowd.profiles(season)]) / state.problem.sizes  # (n, M)
        K = len(state.problem.arms)
        changed = np.asarray(decision.reason_code != UNCHANGED, np.float64)
        worth = np.where(told.observed, np.einsum("snm,nm->sn", told.y, p), np.nan)
        rewards = np.einsum("snkm,nm->snk", means, p)
        done = Season(
            number=season,
            action=decision.action,
            probabilities=decision.probabilities[..., :K],
            changed=changed,
            means=rewards,
            reward=worth,
            told=told,
            exact=decision.exact,
            offers=offers,
            look=taken,
        )
        if watch is not None:
            past.append(done)
            if taken is not None:
                watch.look(past, learned)
        yield done


def controls(world: SimulatedTrials, season: Season) -> FloatArray:
    """The control of each decision: (S, n, K)."""
    own = np.stack([p.control for p in world.population.profiles(season.number)])
    return np.broadcast_to(own, (*season.action.shape, own.shape[-1]))


def _decided(
    world: SimulatedTrials,
    learned: Any,
    offers: Offer,
    season: int,
    first: int,
    draws: FloatArray,
    holds: BoolArray | None,
) -> tuple[Any, Draw]:
    """A season as the trial's own policy decides it; where a guard keeps accounts, one plot of each user at a time."""
    state = world.population.state
    policy = state.policy
    n = len(world.population.seasons[season])
    user, before = world.population.user(season), _earlier(world, season)
    parts: list[tuple[IntArray, Draw]] = []
    done = 0
    for at in _waves(user) if state.remembers_users else [np.arange(n)]:
        some = offers if len(at) == n else offers.take(at)
        some = replace(some, floor=_floor(state, first + done, before[at], None if holds is None else holds[:, at]))
        learned = policy.settle(learned)
        decision = policy.decide(learned, some, draws[:, first + done : first + done + len(at)])
        learned = policy.commit(learned, some, decision)
        parts.append((at, decision))
        done += len(at)
    if len(parts) == 1:
        return learned, parts[0][1]
    order = np.argsort(np.concatenate([at for at, _ in parts]))
    joined: dict[str, Any] = {
        name: np.concatenate([getattr(d, name) for _, d in parts], 1)[:, order]
        for name in ("action", "probabilities", "reason_code")
    }
    return learned, Draw(**joined, exact=parts[0][1].exact)


def _by_design(world: SimulatedTrials, design: Design, offers: Offer, season: int, draws: FloatArray) -> Draw:
    """A season that is decided without learning."""
    S, n = len(world.seeds), len(world.population.seasons[season])
    K = offers.features.shape[-2]
    can = np.ones((n, K), bool) if offers.available is None else offers.available[0]
    if design.allocation == CONTROL:
        p = offers.control
    else:
        p = np.broadcast_to(can / can.sum(-1, keepdims=True), (S, n, K))
    if design.allocation in (CONTROL, UNIFORM):
        action = probability.sample(p, draws[:, :n, 0])
    elif design.allocation == FIXED:
        action = np.stack([_balanced(can, streams.generator(int(seed), f"plan {season}")) for seed in world.seeds])
    return Draw(action, p, np.full((S, n), UNCHANGED))


def _balanced(can: Any, rng: np.random.Generator) -> IntArray:
    """Each decision gets the arm that it can get and that was given least, in random order: (n,)."""
    n, K = can.shape
    given, action = rng.random(K) * 0.5, np.zeros(n, np.intp)
    for i in rng.permutation(n):
        action[i] = int(np.argmin(np.where(can[i], given, np.inf)))
        given[action[i]] += 1.0
    return action


def _outcome(state: TrialState, offers: Offer, told: Response) -> Outcome:
    """Outcomes as the policy learns from them."""
    sizes = state.problem.sizes
    y, y0 = told.y / sizes, told.control / sizes
    there = None if told.observed.all() else np.broadcast_to(told.observed[..., None], y.shape)
    if state.spec.feedback == "difference" and state.spec.kind != "paper":
        return Outcome(None, y, there, y0, there)
    if state.spec.feedback == "difference":
        y = y - y0
    reward = np.vecdot(np.asarray(offers.preference), y)
    return Outcome(np.asarray(reward), y, there)


def _floor(state: TrialState, decisions: int, own: IntArray, holds: BoolArray | None) -> Floor | None:
    if state.spec.floors is None:
        return None
    floors = Floors(**state.spec.floors.heights())
    found = floors.after(own if floors.count == "user" else np.full(len(own), decisions))
    if state.spec.floors.until is None or holds is None:
        return found
    return Floor(control=found.control * holds, arms=found.arms * holds)


def _earlier(world: SimulatedTrials, season: int) -> IntArray:
    """How many decisions each user of this season's had in earlier ones: (n,)."""
    crowd = world.population
    count = np.zeros(len(crowd.users), np.intp)
    for before in range(season):
        np.add.at(count, crowd.user(before), 1)
    return np.asarray(count[crowd.user(season)])


def _waves(user: IntArray) -> list[IntArray]:
    """The first plot of every user, then the second, and so on."""
    turn = np.array([np.count_nonzero(user[:i] == u) for i, u in enumerate(user)])
    return [np.flatnonzero(turn == t) for t in range(int(turn.max()) + 1)]


# Ranges at all times from the propensities alone, of a batch of simulated trials.


def propensities(
    world: SimulatedTrials, seasons: Sequence[Season], looks: Sequence[int], alpha: float = ALPHA
) -> FloatArray:
    """The range of each arm's effect on the reward of all users, from what was told by each look: (S, T, K, 2).

    A range at all times is computed for every decision at once, so that one pass serves all looks. Only where a look
    has seen one user or one season so far, it predicts in another way, and has a pass of its own.
    """
    S, K, last = len(world.seeds), seasons[0].means.shape[-1], world.setting.seasons - 1
    found = np.empty((S, len(looks), K, 2))
    found[..., 0], found[..., 1] = -np.inf, np.inf
    if not all(s.exact for s in seasons):
        return found
    until = [now if now == last else now - world.setting.delay for now in looks]  # the last season that is told
    passes: dict[tuple[bool, bool], list[int]] = {}
    for t, end in enumerate(until):
        users = {int(u) for s in seasons if s.number <= end for u in world.population.user(s.number)}
        passes.setdefault((len(users) > 1, end > 0), []).append(t)
    for some in passes.values():
        seen = [s for s in seasons if s.number <= until[some[-1]]]
        if seen:
            _pass(world, seen, [until[t] for t in some], alpha, found[:, some[0] : some[-1] + 1])
    return found


def _pass(
    world: SimulatedTrials, seen: Sequence[Season], until: Sequence[int], alpha: float, found: FloatArray
) -> None:
    """Fill in the ranges after each of the seasons `until`: (S, T, K, 2)."""
    S, _, K, _ = found.shape
    action, reward = (np.concatenate([getattr(s, name) for s in seen], 1) for name in ("action", "reward"))
    e = np.concatenate([s.probabilities for s in seen], 1)
    control = np.concatenate([controls(world, s) for s in seen], 1)[0]
    user = np.concatenate([world.population.user(s.number) for s in seen])
    season = np.concatenate([np.full(s.action.shape[1], s.number) for s in seen])
    whole = np.isfinite(reward).all()
    for some in [slice(None)] if whole else [slice(s, s + 1) for s in range(S)]:
        at = np.flatnonzero(np.isfinite(reward[some]).all(0))
        # Nothing predicted the first decision of all, so it is left out; then place i is after decision i + 2.
        place = np.searchsorted(season[at], until, "right") - 2
        told = np.flatnonzero(place >= 0)
        if not len(told):
            continue
        a, r, p = action[some][:, at], reward[some][:, at], e[some][:, at]
        q = propensity_effects.running_predictions(a, r, K, user=user[at], season=season[at])
        for k in range(K):
            g = np.eye(K)[k] - control[at]
            if not g.any():
                continue
            scored = propensity_effects.effect_scores(
                action=a[:, 1:], reward=r[:, 1:], probabilities=p[:, 1:], contrast=g[1:], predictions=q[:, 1:]
            )
            band = propensity_effects.asymptotic_band(scored, alpha)
            found[some, told, k] = np.stack([band.low[:, place[told]], band.high[:, place[told]]], -1)
