"""Simulated trials in batch: the policy and the stopping rules of a trial file, in many worlds side by side.

The functions that decide here are the live ones. A season is decided as a whole; its outcomes are told at its end, or
so many seasons later. Trials that a rule has paused go on at once.
Shapes: S trials, L seasons, n decisions of a season, H users who are looked at, U users, K arms, M metrics, R rules.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from typing import Any, ClassVar, Protocol

import numpy as np

from drimed import streams
from drimed.evaluation.propensity_effects import asymptotic_band, effect_scores, running_predictions
from drimed.models.mixed import effects
from drimed.models.mixed.effects import ALPHA, LIKELY
from drimed.models.mixed.learner import Field
from drimed.models.offer import Offer, Outcome
from drimed.numerics import probability
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray, pick
from drimed.policies.guards.base import UNCHANGED, Draw
from drimed.policies.policy import Policy
from drimed.policies.protocol import AnyPolicy
from drimed.records import Claim
from drimed.rehearsal.results import NEGLIGIBLE, Record
from drimed.rehearsal.scenarios import Scenario, SimulatedTrials
from drimed.simulation.sweep import Task
from drimed.simulation.trial_world import Response
from drimed.trial.dataset import Dataset, merged, outcome_columns
from drimed.trial.estimates import of_posterior, of_regression
from drimed.trial.events import RETIRED, STOPPED, Calibration, HistoryRead
from drimed.trial.look_history import BY_HAND, due, has_floor
from drimed.trial.spec import Tolerance, TrialSpec
from drimed.trial.state import Episode, TrialState
from drimed.trial.stopping import evaluate

POLICY, UNIFORM, CONTROL, FIXED = "policy", "uniform", "control", "fixed"
BLOCK = 50  # trials that are computed side by side
ONE_SIDE = 0.5 + LIKELY / 2
MOST_LOOKS = 6  # of a design without learning: it needs no fit to decide, and each look costs one


@dataclass(frozen=True)
class Design:
    """A way to choose arms; a trial's file with another tolerance is another design."""

    name: str
    spec: TrialSpec
    allocation: str = POLICY

    @property
    def learns(self) -> bool:
        return self.allocation == POLICY


@dataclass(frozen=True, kw_only=True)
class Rehearsal(Task[Record]):
    """Simulated trials of one design in one scenario."""

    spec: TrialSpec  # the trial that is rehearsed: its tolerance says what harm is
    design: Design
    scenario: Scenario
    seasons: int | None
    history: HistoryRead | None = None  # that the trial begins with
    calibration: Calibration | None = None

    record_type: ClassVar[type[Record]] = Record
    block_size: ClassVar[int] = BLOCK

    @property
    def label(self) -> str:
        return self.design.name

    def described(self) -> Any:
        past = None if self.history is None else self.history.hash
        scenario, specs = self.scenario.model_dump(mode="json"), [self.spec.plain(), self.design.spec.plain()]
        bounds = None if self.calibration is None else self.calibration["hash"]
        return [*specs, self.design.allocation, scenario, self.seasons, self.seeds, past, bounds]

    def run(self) -> Record:
        trials = SimulatedTrials.of(
            self.spec, self.scenario, self.seeds, self.seasons, self.history, self.design.spec, self.calibration
        )
        last, monitor = trials.setting.seasons - 1, StoppingMonitor(trials)
        looks = None if self.design.learns else set(np.linspace(0, last, MOST_LOOKS).round())
        return record(monitor, list(play(trials, self.design, looks=looks, monitor=monitor)), self.spec.tolerance)


@dataclass(frozen=True)
class Look:
    """Estimated effects on the reward after a season; NaN and infinite where a policy estimates none."""

    estimate: FloatArray  # (S, H, K)
    half: FloatArray  # (S, H, K), of the likely range
    mean: FloatArray  # (S, K), of all users together
    likely: FloatArray  # (S, K), half of its likely range
    low: FloatArray  # (S, K), of its range at all times
    high: FloatArray  # (S, K)
    significant: BoolArray  # (S, K), whether its likely range says the same allowing for the number of arms
    confirmed: BoolArray  # (S, K), whether enough seasons have told of arm and control for the model to claim anything


@dataclass(frozen=True)
class Season:
    """One season of all trials."""

    number: int
    action: IntArray  # (S, n)
    probabilities: FloatArray  # (S, n, K)
    changed: BoolArray  # (S, n), whether the guard intervened
    means: FloatArray  # (S, n, K), the mean reward of each arm
    reward: FloatArray  # (S, n), as measured; NaN where it never came
    response: Response
    exact: bool  # whether the probabilities are those of the draw
    offers: Offer
    control: FloatArray  # (n, K), of each decision's user
    look: Look | None


def play(
    trials: SimulatedTrials, design: Design, *, looks: Container[int] | None = None,
    monitor: Monitor | None = None, estimates: bool = True,
) -> Iterator[Season]:  # fmt: skip
    """Season after season; the trials are looked at after those in `looks`, or (None) after all.

    `monitor` evaluates the stopping rules after every look, and says for which users the floor has ended, and which
    arms were dropped. Without `estimates` these are all that look.
    """
    state = trials.state
    policy, K, L = state.policy, len(state.problem.arms), trials.setting.seasons
    learned, open_episode = trials.start(), state.episode.number
    draws = trials.policy_draws(policy.draws_needed(state.problem.shape) if design.learns else 1)
    waiting: list[tuple[int, Offer, IntArray, Outcome]] = []
    earlier, drawn = trials.earlier(), 0  # decisions so far, of each user and in all simulated seasons
    past: list[Season] = []
    for season, episode in enumerate(trials.episodes):
        offers, user, last = trials.offers(season), trials.user(season), season == L - 1
        if episode > open_episode:
            opening = trials.opening(season) if policy.needs_contexts_at_opening else offers
            learned, open_episode = policy.begin_episode(learned, opening), episode
        now, drawn = draws[:, drawn : drawn + len(user)], drawn + len(user)
        means = trials.means(season, offers)
        if monitor is not None and monitor.dropped.any():
            offers = replace(offers, available=_possible(offers) & ~monitor.dropped[:, None])
        if design.learns:
            floors = None if monitor is None else monitor.floors(season)
            open_to = _without_held_out(offers, trials.held_out(season))
            learned, draw = _decide(state, learned, open_to, user, earlier, now, floors)
        else:
            draw = _allocate(trials, design, offers, season, now)
        response = trials.respond(season, draw.action, means)
        waiting.append((season, offers, draw.action, outcome_of(state, offers, response)))
        while waiting and (last or waiting[0][0] <= season - trials.setting.delay):
            then, offered, action, outcome = waiting.pop(0)
            learned = policy.observe(learned, offered, action, outcome, episode - trials.episodes[then])
        np.add.at(earlier, user, 1)
        look, is_look = None, last or looks is None or season in looks
        if is_look:
            learned = policy.settle(learned)
            look = look_at(policy, learned, trials.typical) if estimates else None
        profiles = trials.profiles(season)
        p = np.stack([q.preference for q in profiles]) / state.problem.sizes  # (n, M)
        past.append(
            Season(
                season, draw.action, draw.probabilities[..., :K], np.asarray(draw.reason_code != UNCHANGED),
                means=np.einsum("snkm,nm->snk", means, p),
                reward=np.where(response.observed, np.einsum("snm,nm->sn", response.y, p), np.nan),
                response=response, exact=draw.exact, offers=offers, look=look,
                control=np.stack([q.control[:K] for q in profiles]),
            )
        )  # fmt: skip
        if monitor is not None and is_look:
            monitor.look(past, learned)
        yield past[-1]


def _decide(
    state: TrialState, learned: Any, offers: Offer, user: IntArray, earlier: IntArray, draws: FloatArray,
    holds: BoolArray | None,
) -> tuple[Any, Draw]:  # fmt: skip
    """A season by the trial's own policy; where a guard keeps accounts, one plot of each user at a time."""
    policy, spec, n, first = state.policy, state.spec, len(user), int(earlier.sum())
    turn = (
        np.array([np.count_nonzero(user[:i] == u) for i, u in enumerate(user)])
        if state.problem.remembers_users(state.policy)
        else user * 0
    )
    waves = [np.flatnonzero(turn == t) for t in range(int(turn.max()) + 1)]
    parts: list[Draw] = []
    done = 0
    for at in waves:
        floor = None
        if (floors := state.problem.floors) is not None:
            floor = floors.after(earlier[user[at]] if floors.count == "user" else np.full(len(at), first + done))
            if spec.floors is not None and spec.floors.until is not None and holds is not None:
                floor = floor.where(holds[:, at])
        some = replace(offers if len(at) == n else offers.take(at), floor=floor)
        learned = policy.settle(learned)
        parts.append(policy.decide(learned, some, draws[:, done : done + len(at)]))
        learned = policy.commit(learned, some, parts[-1])
        done += len(at)
    order, columns = np.argsort(np.concatenate(waves)), ("action", "probabilities", "reason_code")
    joined: dict[str, Any] = {name: np.concatenate([getattr(d, name) for d in parts], 1)[:, order] for name in columns}
    return learned, Draw(**joined, exact=parts[0].exact)


def _without_held_out(offers: Offer, held: BoolArray | None) -> Offer:
    """Offers (S, n) in which users who are held out can get their control alone."""
    if held is None:
        return offers
    return replace(offers, available=np.where(held[..., None], offers.control > 0, _possible(offers)))


def _allocate(trials: SimulatedTrials, design: Design, offers: Offer, season: int, draws: FloatArray) -> Draw:
    """A season that is decided without learning."""
    can, n = _possible(offers), offers.control.shape[-2]
    p = offers.control if design.allocation == CONTROL else can / can.sum(-1, keepdims=True)
    if design.allocation == FIXED:
        generators = [streams.generator(int(seed), f"plan {season}") for seed in trials.seeds]
        action = np.stack([_balanced(can[0], rng) for rng in generators])
    else:
        action = probability.sample(p, draws[:, :n, 0])
    return Draw(action, p, np.full(action.shape, UNCHANGED))


def _balanced(can: BoolArray, rng: np.random.Generator) -> IntArray:
    """For each decision, in random order, the available arm that was given least: (n,)."""
    n, K = can.shape
    given = 0.5 * np.asarray(rng.random(K))
    action = np.zeros(n, np.intp)
    for i in rng.permutation(n):
        action[i] = int(np.argmin(np.where(can[i], given, np.inf)))
        given[action[i]] += 1.0
    return action


def outcome_of(state: TrialState, offers: Offer, response: Response) -> Outcome:
    """Outcomes as the policy learns from them."""
    y, y0 = response.y / state.problem.sizes, response.control / state.problem.sizes
    observed = None if response.observed.all() else np.broadcast_to(response.observed[..., None], y.shape)
    beside = state.spec.feedback == "difference"
    if beside and state.spec.kind != "paper":
        return Outcome(None, y, observed, y0, observed)
    y = y - y0 if beside else y
    size = None if response.size is None else np.broadcast_to(response.size, (*y.shape[:-1], len(response.size)))
    return Outcome(np.vecdot(np.asarray(offers.preference), y), y, observed, size=size)


def look_at(policy: AnyPolicy, state: Any, offers: Offer) -> Look:
    """Effects by a settled state, of offers (S, H) in a typical context.

    The published algorithms estimate reward over noise, and no effects.
    """
    if not isinstance(policy, Policy):
        unknown, endless = np.full(offers.control.shape, np.nan), np.full(offers.control.shape, np.inf)
        wide, every = endless[:, 0], np.ones(endless[:, 0].shape, bool)
        return Look(unknown, endless, unknown[:, 0], wide, -wide, wide, every, every)
    estimate, above, below = policy.effects(state, offers, ONE_SIDE)
    enough = effects.has_enough_seasons(policy.learner, state.evidence, offers)
    confirmed = np.broadcast_to(enough, estimate.shape).all(-2)
    if isinstance(policy.learner, Field):
        model = effects.FittedModel.of(policy.learner, state.evidence)
        together = effects.effects_together(model, offers, _possible(offers)).at((..., 0))
        five, arms = of_posterior(together), effects.compared_arms(offers.control, offers.available)
        significant = effects.is_significant(together, None, arms, 1)
    else:
        fit = policy.fit(state)
        five = of_regression(fit, (offers.features - offers.control_features[..., None, :]).mean(-3))
        significant = np.ones(confirmed.shape, bool)
    mean, low, high, _, likely = five
    return Look(estimate, 0.5 * (above + below), mean, likely - mean, low, high, significant, np.asarray(confirmed))


def weights(offers: Offer, some: BoolArray | None = None) -> FloatArray:
    """Weight of each user in the mean effect of an arm: (H, K), over users who can get it, or `some` (H,) of them."""
    control = offers.control[0]
    mine = np.ones(len(control), bool) if some is None else some
    out = np.zeros(control.shape)
    out[mine] = effects.mean_weights(_possible(offers)[0][mine])
    return out


def _possible(offers: Offer) -> BoolArray:
    return np.ones(offers.control.shape, bool) if offers.available is None else offers.available


class Monitor(Protocol):
    """Stopping rules of simulated trials."""

    dropped: BoolArray  # (S, K), arms that are not given any more

    def look(self, seasons: Sequence[Season], learned: Any) -> None:
        """After the last of these seasons, at the state of the policy by then."""

    def floors(self, season: int) -> BoolArray | None:
        """Whether the floor still holds for each decision of a season: (S, n); None: it does not end."""


@dataclass
class StoppingMonitor:
    """Stopping rules of simulated trials, evaluated by the live functions on a state of each trial's own."""

    trials: SimulatedTrials
    met: list[BoolArray] = field(default_factory=list)  # (S, R) after each look
    wrong: list[BoolArray] = field(default_factory=list)  # (S, R), with a claim that is false
    last_look: dict[int, dict[str, Any]] = field(default_factory=dict)  # by trial

    def __post_init__(self) -> None:
        S, stopping = len(self.trials.seeds), self.trials.state.spec.stopping
        self.rules = {} if stopping is None else dict(stopping.rules)  # by name, in the order of the file
        self.history = [self.trials.state.looked] * S  # of looks
        state = self.trials.state
        self.dropped = np.tile([arm in state.retired for arm in state.problem.arms], (S, 1))
        self.played = np.full(S, self.trials.setting.seasons)  # before a rule or a limit ended the trial, or all

    def look(self, seasons: Sequence[Season], learned: Any) -> None:
        """After the last of these seasons, at the state of the policy by then."""
        S, R = len(self.trials.seeds), len(self.rules)
        met, wrong = (self.met[-1].copy(), self.wrong[-1].copy()) if self.met else np.zeros((2, S, R), bool)
        if self.trials.state.spec.stopping is not None:
            for s in np.flatnonzero(self.played > seasons[-1].number):
                self._look(int(s), seasons, learned, met[s], wrong[s])
        self.met.append(met)
        self.wrong.append(wrong)

    def floors(self, season: int) -> BoolArray:
        """Whether the floor still holds for each decision of a season: (S, n)."""
        trials, state = self.trials, self.trials.states[season]
        left = np.ones((len(self.history), len(trials.state.profiles)), bool)
        for s, looked in enumerate(self.history):
            if looked.ended:
                own = replace(state, looked=looked)
                left[s, list(state.users.values())] = [has_floor(own, user) for user in state.users]
        return np.asarray(left[:, trials.user(season)])

    def _look(self, s: int, seasons: Sequence[Season], learned: Any, met: BoolArray, wrong: BoolArray) -> None:
        """Of one trial, before its next season, or by hand at its end."""
        trials, now = self.trials, seasons[-1].number
        last = now == trials.setting.seasons - 1
        until = now if last else now - trials.setting.delay
        observed = np.concatenate([one.response.observed[s] & (one.number <= until) for one in seasons])
        before, complete = trials.state.counts, int(observed.sum())
        state = replace(
            trials.states[now],
            learned=member(learned, trials.state.learned, s),
            counts=replace(before, pending=len(observed) - complete, complete=before.complete + complete),
            episode=Episode(trials.episodes[now]),
            looked=self.history[s],
            retired=tuple(arm for arm, gone in zip(trials.state.problem.arms, self.dropped[s], strict=True) if gone),
        )
        cause = BY_HAND if last else due(state, opens=True)
        done: set[str] = set()
        while cause is not None and cause not in done:
            done.add(cause)
            body = evaluate(state, cause, partial(self._dataset, state, seasons, s, observed))
            self.last_look[s] = body
            state = replace(state, looked=state.looked.after(trials.state.seq + now + 1, body))
            for claim in (Claim(**one) for one in body["claims"] if one["met"]):
                r = list(self.rules).index(claim.rule)
                met[r], wrong[r] = True, wrong[r] or self._is_false(s, claim)
            for demand in body["demands"]:
                if demand["kind"] == RETIRED:
                    self.dropped[s, state.problem.arm(demand["arm"])] = True
            if any(demand["kind"] == STOPPED for demand in body["demands"]):
                self.played[s] = now + 1
                break
            cause = None if last else due(state, opens=True)
        self.history[s] = replace(state.looked, demands=())
        most = None if state.spec.stopping is None else state.spec.stopping.decisions
        if not last and most is not None and state.counts.decisions + len(trials.places[now + 1]) > most:
            self.played[s] = now + 1  # no room for a whole season

    def _dataset(self, state: TrialState, seasons: Sequence[Season], s: int, observed: BoolArray) -> Dataset:
        """The decisions of one trial, as a live one reads its own."""
        trials, numbers = self.trials, [one.number for one in seasons]
        arm, p = (np.concatenate([getattr(one, name)[s] for one in seasons]) for name in ("action", "probabilities"))
        y, control = (np.concatenate([getattr(one.response, k)[s] for one in seasons]) for k in ("y", "control"))
        beside = observed & (state.spec.feedback == "difference")  # else there are no control plots
        contexts = [c for number in numbers for c in trials.contexts(number)]
        slot = np.concatenate([trials.user(number) for number in numbers])
        y, control = (np.where(has[:, None], x, np.nan) for has, x in ((observed, y), (beside, control)))
        played = Dataset(
            state=state,
            number=trials.state.counts.decisions + np.arange(1, len(arm) + 1),
            episode=np.repeat([trials.episodes[i] for i in numbers], [one.action.shape[1] for one in seasons]),
            slot=slot, arm=arm, probabilities=p, given=arm, held=np.zeros(len(arm), bool),
            propensity=pick(p, arm) if all(one.exact for one in seasons) else np.full(len(arm), np.nan),
            context=None if contexts[0] is None else np.stack([np.asarray(c)[s] for c in contexts]),
            block=np.concatenate([trials.block(number) for number in numbers]),
            **outcome_columns(state, slot, y, control),
        )  # fmt: skip
        return played if trials.recorded is None else merged(trials.recorded, played)

    def _is_false(self, s: int, claim: Claim) -> bool:
        """Whether the world says otherwise of the users of a claim; of all, where no user who is looked at is one."""
        trials, rule, problem = self.trials, self.rules[claim.rule], self.trials.state.problem
        scope, arm = trials.state.looked.scopes[claim.rule], problem.arm(claim.arm)
        metric = 0 if rule.metric is None else 1 + problem.metrics.index(rule.metric)
        truth = true_effects(trials, scope.by, claim.who, metric)[s, arm]
        return bool(scope.question(rule).distance(truth, truth) >= 0)


def true_effects(trials: SimulatedTrials, by: str, who: str, metric: int) -> FloatArray:
    """The effect of each arm for a group, a user or all, on the reward (0) or a metric, as the world has it: (S, K).

    That of all, where no user who is looked at is one of them.
    """
    names = [{"group": p.group, "user": p.user}.get(by, who) for p in trials.looked_at]
    some = np.array([name == who for name in names])
    return np.einsum("hk,shk->sk", weights(trials.typical, some if some.any() else None), trials.effects[..., metric])


def member(batch: Any, like: Any, s: int) -> Any:
    """One member of a batch of states; `like` is a state without a batch, which tells what belongs to all members."""
    if is_dataclass(batch) and not isinstance(batch, type):
        parts = {f.name: member(getattr(batch, f.name), getattr(like, f.name), s) for f in fields(batch)}
        return type(batch)(**parts)
    return batch[s] if isinstance(batch, np.ndarray) and batch.ndim > np.ndim(like) else batch


def propensity_ranges(
    trials: SimulatedTrials, seasons: Sequence[Season], looks: Sequence[int], alpha: float = ALPHA
) -> FloatArray:
    """Ranges at all times of each arm's effect on the reward of all users, from the propensities: (S, T, K, 2)."""
    S, K, last = len(trials.seeds), seasons[0].means.shape[-1], trials.setting.seasons - 1
    ranges = np.broadcast_to([-np.inf, np.inf], (S, len(looks), K, 2)).copy()
    for t, now in enumerate(looks if all(s.exact for s in seasons) else ()):
        told = [s for s in seasons if s.number <= (now if now == last else now - trials.setting.delay)]
        if not told:
            continue
        names = ("action", "reward", "probabilities")
        action, reward, p = (np.concatenate([getattr(s, name) for s in told], 1) for name in names)
        control, user = (
            np.concatenate(x) for x in zip(*((s.control, trials.user(s.number)) for s in told), strict=True)
        )
        season = np.repeat([s.number for s in told], [s.action.shape[1] for s in told])
        for some in [slice(None)] if np.isfinite(reward).all() else [slice(s, s + 1) for s in range(S)]:
            at = np.flatnonzero(np.isfinite(reward[some]).all(0))
            if len(at) < 2:
                continue
            a, r, e = action[some][:, at], reward[some][:, at], p[some][:, at]
            q = running_predictions(a, r, K, user=user[at], season=season[at])
            for k in range(K):
                g = np.eye(K)[k] - control[at]
                if g.any():  # nothing predicted the first decision of all, so it is left out
                    scored = effect_scores(
                        action=a[:, 1:], reward=r[:, 1:], probabilities=e[:, 1:], contrast=g[1:], predictions=q[:, 1:]
                    )
                    band = asymptotic_band(scored, alpha)
                    ranges[some, t, k] = np.stack([band.low[:, -1], band.high[:, -1]], -1)
    return ranges


def record(monitor: StoppingMonitor, seasons: Sequence[Season], tolerance: Tolerance) -> Record:
    """The record of trials that were played. Harm is beyond this tolerance, whatever that of the design is."""
    trials = monitor.trials
    S, U = len(trials.seeds), len(trials.users)
    looks = [s.number for s in seasons if s.look is not None]
    loss, tolerated, count = np.zeros((3, S, U))
    columns: dict[str, list[Any]] = {}
    for season in seasons:
        means, can = season.means, _possible(season.offers)
        given, control = pick(means, season.action), np.vecdot(season.control, means)
        allowed = tolerance.relative * np.abs(control) + tolerance.absolute
        by_season = {
            "allocation": (season.action[..., None] == np.arange(means.shape[-1])).mean(1),
            "control": pick(np.broadcast_to(season.control, means.shape), season.action).mean(1),
            "given": given.mean(1),
            "controls": control.mean(1),
            "best": np.where(can, means, -np.inf).max(-1).mean(1),
            "uniform": ((can * means).sum(-1) / can.sum(-1)).mean(1),
            "changed": season.changed.mean(1),
            "violations": (control - given > allowed * (1 + NEGLIGIBLE)).mean(1),
        }
        for name, values in by_season.items():
            columns.setdefault(name, []).append(values)
        whose, running = np.eye(U)[trials.user(season.number)], (monitor.played > season.number)[:, None]
        loss += running * ((control - given) @ whose)
        tolerated += running * (allowed @ whose)
        count += running * whose.sum(0)
    free = propensity_ranges(trials, seasons, looks)  # (S, T, K, 2)
    by_look = {f.name: [getattr(s.look, f.name) for s in seasons if s.look is not None] for f in fields(Look)}
    by_look |= {"met": monitor.met, "wrong": monitor.wrong}
    looked = {name: np.stack(values, 1) for name, values in by_look.items()}
    looked |= {"free_low": free[..., 0], "free_high": free[..., 1]}
    played, truth = monitor.played, trials.effects[..., 0]
    # Looks after the end of a trial repeat the last one.
    last = np.maximum((np.array(looks) < played[:, None]).sum(1) - 1, 0)  # (S,)
    held = np.minimum(np.arange(len(looks)), last[:, None])  # (S, T)
    over = np.arange(len(seasons)) >= played[:, None]  # (S, L)
    courses = {name: np.stack(values, 1) for name, values in columns.items()}
    for values in courses.values():
        values[over] = np.nan
    return Record(
        looks=np.array(looks), played=played, truth=truth,
        loss=loss / np.maximum(count, 1), tolerated=tolerated / np.maximum(count, 1),
        truth_all=np.einsum("hk,shk->sk", weights(trials.typical), truth),
        meant=np.broadcast_to(_meant(trials), (S, truth.shape[-1])),
        **courses,
        **{name: values[np.arange(S)[:, None], held] for name, values in looked.items()},
    )  # fmt: skip


def _meant(trials: SimulatedTrials) -> FloatArray:
    """The sign of each arm's effect in the scenario; where effects are drawn, every arm is meant to be found: (K,)."""
    looked_at, s = trials.looked_at, trials.setting
    p = np.mean([q.preference for q in looked_at], axis=0) / trials.state.problem.sizes
    control = np.mean([q.control for q in looked_at], axis=0)
    if s.spread.any():
        return 1.0 - (control == 1.0)
    worth = s.effects @ p
    off = worth - control @ worth
    return np.asarray(np.sign(np.where(np.abs(off) > NEGLIGIBLE * np.abs(off).max(), off, 0.0)))
