"""Forecasts of a running trial: how much longer it takes, played on from its present state by its own policy and rules.

Each simulated trial has variances, effects and outcomes of its own, drawn from the present posterior of the mixed
model, and starts from what the trial has learned. Outcomes that are pending come first; then seasons follow with the
same users. Shapes: S simulated trials, L seasons, n decisions of a season, C clusters, K arms, M metrics, P columns of
theta and Q of a cluster's own effects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import ndtr

from drimed import streams
from drimed.errors import InputError
from drimed.formatting import counted, percent
from drimed.models.mixed import generalised, posterior_draws
from drimed.models.mixed.effects import FittedModel
from drimed.models.mixed.generalised import COUNT, NUMBER, SCORE, Generalised
from drimed.models.mixed.learner import Field
from drimed.models.mixed.likelihood import posterior_at_nodes
from drimed.models.mixed.observations import make_design
from drimed.models.mixed.prediction import effects_of_clusters
from drimed.models.mixed.terms import Layout, Structure
from drimed.models.offer import Offer
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray, pick
from drimed.policies.policy import Policy
from drimed.records import PENDING
from drimed.rehearsal.designs import own
from drimed.rehearsal.play import BLOCK, Look, StoppingMonitor, look_at, outcome_of, play, weights
from drimed.rehearsal.results import Number
from drimed.rehearsal.scenarios import PEOPLE, SEASONS, Scenario, SimulatedTrials, batched, people, setting
from drimed.simulation.trial_world import Response, per_seed, quantile
from drimed.trial import queries
from drimed.trial.ask import Place, places
from drimed.trial.dataset import Dataset, load_dataset
from drimed.trial.events import Decided, Draft, Foreseen
from drimed.trial.problem import Profile, block_key
from drimed.trial.state import TrialState, recorded_decisions
from drimed.trial.trial import Trial

TRIALS = 200
CHANCES = (0.5, 0.8)  # at which a season is named
BETTER = "a better arm is shown"
SIMULATED = "simulated "  # how names of people who join begin

Rows = tuple[IntArray, FloatArray]  # factors (S, n, K, F) and covariates (S, n, K, c) of decisions


@dataclass(frozen=True)
class Forecast:
    """The chance that something is shown by the end of each season to come."""

    episodes: Sequence[int]  # numbers of the seasons
    decisions: Sequence[int]  # of the trial by the end of each
    chances: dict[str, list[Number]]  # of a better arm and of each stopping rule, by season
    any_better: Number  # the chance that an arm is better at all
    already: bool  # an arm is shown to be better now
    trials: int
    episode: int = 0  # the season that it was made in

    def point(self, chance: float, name: str = BETTER) -> int | None:
        """The first of the seasons by which the chance is reached, from 0; None: none of them."""
        return next((t for t, share in enumerate(self.chances[name]) if share.value >= chance), None)

    def by(self, t: int) -> str:
        """The end of a season, in words; people who come one by one are counted."""
        by_season = len(set(self.episodes)) == len(self.episodes)
        return f"season {self.episodes[t]}" if by_season else f"decision {self.decisions[t]}"

    def text(self) -> str:
        low, high = (self.point(chance) for chance in CHANCES)
        last, end = self.chances[BETTER][-1].text(), self.by(len(self.episodes) - 1)
        shown = "an arm is shown to be better than the control for all users together"
        if self.already:
            return f"A{shown[1:]} already."
        if low is None:
            return f"The chance that {shown} by {end} is {last}."
        even = f"ith {percent(CHANCES[0])} chance"
        if high is None:
            return f"W{even} {shown} by {self.by(low)}; by {end} the chance is {last}."
        return f"With {percent(CHANCES[1])} chance {shown} by {self.by(high)}; w{even} by {self.by(low)}."

    def assumed(self) -> list[str]:
        each = (self.decisions[-1] - self.decisions[0]) / max(len(self.decisions) - 1, 1)
        return [
            f"the trial goes on until {self.by(len(self.episodes) - 1)} with the same users and about {each:.0f} "
            "decisions at a time; outcomes that are pending come first, and all are told",
            "effects and variation are as the trial has learned them: each simulated trial draws its own from what is "
            f"plausible now; in {self.any_better.text()} of {counted(self.trials, 'simulated trial')} an arm is better",
        ]

    def rows(self) -> list[dict[str, str]]:
        return [
            {"by the end of": self.by(t), "decisions": str(self.decisions[t])}
            | {name: shares[t].text() for name, shares in self.chances.items()}
            for t in range(len(self.episodes))
        ]


def forecast(
    trial: Trial, *, seasons: int | None = None, trials: int = TRIALS, seed: int = 0,
    on_done: Callable[[int, int], object] | None = None,
) -> Forecast:  # fmt: skip
    """Play a running trial on, so many simulated times for so many seasons; `on_done` is told how many are done."""
    with trial.reading() as (ledger, state):
        recorded = load_dataset(ledger, state) if state.spec.rules else None
        numbers = [number for number, outcome in queries.pending(ledger).items() if outcome == PENDING]
        pending = [one.body for one in recorded_decisions(ledger, state, numbers)]
    return play_on(state, pending, recorded, seasons, trials, seed, on_done)


def keep(trial: Trial, foreseen: Forecast, *, actor: str | None = None) -> None:
    """Record a forecast in the log, where the overview page and reports of any process find it."""
    with trial.writing(actor) as tx:
        tx.append([Draft(Foreseen(foreseen.episode, foreseen.trials, foreseen.text()))])


def play_on(
    state: TrialState, pending: Sequence[Decided] = (), recorded: Dataset | None = None, seasons: int | None = None,
    trials: int = TRIALS, seed: int = 0, on_done: Callable[[int, int], object] | None = None,
) -> Forecast:  # fmt: skip
    """The forecast from a state, with the decisions whose outcomes are pending."""
    policy, name = state.policy, repr(state.spec.name)
    if not (isinstance(policy, Policy) and isinstance(policy.learner, Field)):
        raise InputError(f"trial {name} has the paper's model, which learns no variation: it cannot be played on")
    if state.status == "stopped":
        raise InputError(f"trial {name} is stopped: nothing more will be decided")
    model = FittedModel.of(policy.learner, state.settled.evidence)
    if not (model.evidence.cells.used and model.scale.known.all()):
        raise InputError(f"trial {name} has no outcomes that differ yet, so it cannot be played on: rehearse its file")
    shown, met, better = list[BoolArray](), list[BoolArray](), list[BoolArray]()
    for first in range(0, trials, BLOCK):
        seeds = [seed * 1_000_000 + i for i in range(first, min(first + BLOCK, trials))]
        some = OngoingTrials.of_state(state, model, pending, recorded, seeds, seasons)
        monitor = StoppingMonitor(some)
        looks = [season.look for season in play(some, own(state.spec), monitor=monitor)]
        by_look = np.stack([is_shown(look, some.typical) for look in looks if look is not None], 1)
        met.append(np.stack(monitor.met, 1))
        # A trial that a rule has stopped shows no more.
        goes_on = np.arange(by_look.shape[1]) < monitor.played[:, None]
        shown.append(np.logical_or.accumulate(by_look & goes_on, 1))
        truth = np.einsum("hk,shk->sk", weights(some.typical), some.effects[..., 0])
        better.append((truth > 0).any(-1))
        if on_done is not None:
            on_done(len(seeds) + first, trials)
    shares = {BETTER: np.concatenate(shown)} | {
        f"rule {name} is met": np.concatenate(met)[..., r] for r, name in enumerate(monitor.rules)
    }
    one = replace(some, seeds=[0]).typical
    alone = batched(state.settled, policy.init(state.problem.shape, (1,)), 1)
    return Forecast(
        episodes=some.episodes,
        decisions=(some.state.counts.decisions + np.cumsum([len(plots) for plots in some.places])).tolist(),
        chances={name: [Number.of(share) for share in values.T] for name, values in shares.items()},
        any_better=Number.of(np.concatenate(better)),
        already=bool(is_shown(look_at(policy, alone, one), one).any()),
        trials=trials,
        episode=state.episode.number,
    )


def is_shown(look: Look, offers: Offer) -> BoolArray:
    """Whether a report would call an arm that users may still get better for all users together: (S,)."""
    called = (look.mean - look.likely > 0) & look.significant & look.confirmed
    return np.asarray((called if offers.available is None else called & offers.available.any(-2)).any(-1))


@dataclass(frozen=True)
class OngoingTrials(SimulatedTrials):
    """Simulated trials that begin where a running one is, in worlds from its posterior."""

    episodes: Sequence[int] = ()
    pending: Sequence[Decided] = ()
    model: FittedModel = None  # type: ignore[assignment]  # as it was fitted; a base class has defaults

    @staticmethod
    def of_state(
        state: TrialState, model: FittedModel, pending: Sequence[Decided], recorded: Dataset | None,
        seeds: Sequence[int], seasons: int | None,
    ) -> OngoingTrials:  # fmt: skip
        """Sites come back in every season, and people join as they did so far."""
        spec, episode, counts = state.spec, state.episode, state.counts
        joins, users = spec.enrols and spec.kind == "people", list(state.users)
        returning = list(spec.users) if joins else users
        # The rest of an open season comes first; where people come one by one in a single season, so do the next ones.
        left = [p for user in returning for p in places(state, user) if p.key not in episode.asked]
        left = left if episode.number and spec.decisions == "one per episode" and not joins else []
        stream = joins and episode.number <= 1
        most = None if spec.stopping is None or stream else spec.stopping.seasons
        L = (seasons or SEASONS) + bool(left)
        L = L if most is None else min(L, most - episode.number + bool(left))
        if L < 1:
            raise InputError(f"trial {spec.name!r} has had its largest number of seasons: nothing more will be decided")
        rate = PEOPLE if stream else max(1, round((len(users) - len(returning)) / max(episode.number, 1)))
        rng = streams.generator(0, "people who join")  # the same in all simulated trials
        now = replace(state, counts=replace(counts, pending=0, complete=counts.complete + counts.pending))
        plots, states = list[list[Place]](), list[TrialState]()
        for season in range(L):
            new = people(spec, rate if joins else 0, len(now.users), rng)
            now = now.with_users([(f"{SIMULATED}{name}", person) for name, person in new.items()])
            names = [*returning, *(f"{SIMULATED}{name}" for name in new)]
            plots.append(left if left and not season else [p for user in names for p in places(now, user)])
            states.append(now)
        if now.problem.remembers_users(now.policy) and len(now.profiles) > state.capacity.users:
            raise InputError("a guard that keeps accounts of users cannot be forecast where people join")
        keys = (block_key(p.user, p.block) for season in plots for p in season if p.block is not None)
        now = replace(now, numbers=now.numbers.with_blocks(keys))
        first = max(episode.number, 1) if stream else episode.number + (not left)
        sizes = setting(spec, Scenario(noise=dict.fromkeys(spec.metrics, 1.0)), L)
        return OngoingTrials(
            now, states, plots, replace(sizes, seasons=L), seeds, recorded=recorded, pending=pending, model=model,
            episodes=[first + (0 if stream else season) for season in range(L)],
        )  # fmt: skip

    @cached_property
    def looked_at(self) -> list[Profile]:
        """Users whose effects are estimated: all, or where people join those of the file or typical ones."""
        users = self.state.spec.users if self.state.spec.enrols else self.state.users
        return [self.state.profile(u) for u in users] or super().looked_at

    def held_out(self, season: int) -> BoolArray | None:
        """Those who are in the trial stay as they are; who joins later is drawn in each simulated trial."""
        held = super().held_out(season)
        known = [(p.held_out, p.user.startswith(SIMULATED)) for p in self.profiles(season)]
        return None if held is None else np.where([new for _, new in known], held, [was for was, _ in known])

    def start(self) -> Any:
        """The trial's state, with the outcomes that are pending."""
        S, policy = len(self.seeds), self.state.policy
        learned = batched(self.state.settled, policy.init(self.state.problem.shape, (S,)), S)
        for number, bodies in self._waiting.items():
            offers = self.state.offer_of(bodies).broadcast((S, len(bodies)))
            action = np.tile([self.state.problem.arm(body.arm) for body in bodies], (S, 1))
            response = self.world.respond(self._rows(offers, number), action, offers.control, f"pending {number}")
            outcome = outcome_of(self.state, offers, response)
            learned = policy.observe(learned, offers, action, outcome, self.state.episode.number - number)
        return learned

    def means(self, season: int, offers: Offer) -> FloatArray:
        return self.world.means(self._rows(offers, self.episodes[season]), average_season=True)

    def respond(self, season: int, action: IntArray, means: FloatArray) -> Response:  # noqa: ARG002
        offers = self.offers(season)
        return self.world.respond(self._rows(offers, self.episodes[season]), action, offers.control, str(season))

    @cached_property
    def effects(self) -> FloatArray:
        """Of each arm for the users who are looked at, on the reward and each metric: (S, H, K, 1 + M)."""
        means = self.world.means(self._rows(self.typical, self.episodes[0]), average_season=True)
        p = np.stack([q.preference for q in self.looked_at]) / self.state.problem.sizes
        both = np.concatenate([np.einsum("shkm,hm->shk", means, p)[..., None], means], -1)
        return np.asarray(both - np.einsum("shko,shk->sho", both, self.typical.control)[:, :, None, :])

    @cached_property
    def world(self) -> PosteriorWorld:  # type: ignore[override]
        rows = [self._rows(self.offers(season), episode) for season, episode in enumerate(self.episodes)]
        rows += [self._rows(self.state.offer_of(bodies), episode) for episode, bodies in self._waiting.items()]
        rows.append(self._rows(self.typical, self.episodes[0]))
        return PosteriorWorld.draw(self.model, self.seeds, rows, self.state.problem.sizes)

    @cached_property
    def _waiting(self) -> dict[int, list[Decided]]:
        return {e: [b for b in self.pending if b.episode == e] for e in sorted({b.episode for b in self.pending})}

    def _rows(self, offers: Offer, episode: int) -> Rows:
        season = self.model.evidence.season + episode - self.state.episode.number  # those of a history come before
        keys, covariates = self.model.learner.features.prediction_rows(offers, season)
        lead = (len(self.seeds), *keys.shape[-3:-1])
        return np.broadcast_to(keys, (*lead, keys.shape[-1])), np.broadcast_to(
            covariates, (*lead, covariates.shape[-1])
        )


@dataclass(frozen=True)
class PosteriorWorld:
    """Variances, coefficients and outcomes drawn from a fitted model, one world for each seed."""

    model: FittedModel
    seeds: Sequence[int]
    sizes: FloatArray  # (M,), of the metrics' units in the learner's
    common: Layout  # of theta, and
    own: Layout  # of a cluster's effects, with columns for values that were not seen yet
    theta: FloatArray  # (S, M, P)
    clusters: IntArray  # (C,)
    effects: FloatArray  # (S, C, M, Q)
    noise: FloatArray  # (S, g, M, M), root of the residual covariance of each noise group
    linked: dict[int, LinkedMetric]  # metrics that are not numbers

    @staticmethod
    def draw(model: FittedModel, seeds: Sequence[int], rows: Sequence[Rows], sizes: FloatArray) -> PosteriorWorld:
        """Worlds for decisions with these factors."""
        structure, fitted = model.structure, model.evidence.fitted

        def normal(name: str, *shape: int) -> FloatArray:
            return np.asarray(per_seed(seeds, name, lambda rng: rng.standard_normal(shape)))

        # Nodes are the posterior's mode and deviations with its very covariance: so are random sums of them.
        off = fitted.nodes - fitted.mode
        x = fitted.mode + normal("variances", len(off)) @ off / np.sqrt(len(off))
        v, R = structure.parameters.variances(x), structure.parameters.residual(x)  # (S, M, families), (S, g, M, M)
        cells = model.evidence.cells.compact(structure.cluster_place)
        design = make_design(structure, cells, fitted.scale, model.learner.discount)
        _, mean, covariance = posterior_at_nodes(design, v, R)
        theta = mean + _correlated(covariance, normal("theta", *mean.shape[1:]))
        most = np.max([keys.reshape(-1, keys.shape[-1]).max(0) for keys, _ in rows], axis=0)
        wide = tuple(np.maximum(structure.sizes, 1 + most).tolist())
        common, own = (replace(layout, sizes=wide) for layout in (structure.common, structure.own))
        wider = np.sqrt(v[..., common.family]) * normal("new values", v.shape[1], len(common.family))
        wider[..., structure.common.places_in(common)] = theta
        clusters = np.unique(np.concatenate([keys[0, :, 0, structure.cluster_place] for keys, _ in rows]))
        M, Q, C = v.shape[1], len(own.family), len(clusters)
        effects = np.sqrt(v[:, None][..., own.family]) * normal("own effects", C, M, Q)
        # Columns (C, t) that a cluster has outcomes of are drawn given these: (C, S, ...).
        drawn = replace(fitted, variance=v, residual=R)
        columns, given = effects_of_clusters(structure, drawn, cells, clusters)
        z = np.swapaxes(normal("own effects given theta", C, *given.shift.shape[2:]), 0, 1)
        posterior = given.shift - np.einsum("csmqnp,snp->csmq", given.gain, theta) + _correlated(given.noise, z)
        if structure.own.members:
            places = np.broadcast_to(structure.own.places_in(own)[columns][:, None, None], posterior.shape)
            np.put_along_axis(effects, np.swapaxes(places, 0, 1), np.swapaxes(posterior, 0, 1), -1)
        effects[:, clusters < 0] = 0.0  # of no one in particular
        root, kinds = np.asarray(np.linalg.cholesky(R), np.float64), model.learner.kinds
        linked = [m for m, kind in enumerate(kinds) if kind != NUMBER]
        more = {m: LinkedMetric.draw(model, seeds, (m, d), wide, clusters) for d, m in enumerate(linked)}
        return PosteriorWorld(model, seeds, sizes, common, own, wider, clusters, effects, root, more)

    def means(self, rows: Rows, *, average_season: bool = False) -> FloatArray:
        """Mean outcome of each arm, in its season or an average one: (S, n, K, M)."""
        keys, covariates = rows
        z = self.model.scale.standardise(covariates)
        X, Z = (layout.rows(keys, z, average_season=average_season) for layout in (self.common, self.own))
        own = self.effects[:, np.searchsorted(self.clusters, keys[0, :, 0, self.model.structure.cluster_place])]
        y = np.einsum("snkp,smp->snkm", X, self.theta) + np.einsum("snkq,snmq->snkm", Z, own)
        y = self.model.centre + self.model.unit * y
        for m, metric in self.linked.items():
            y[..., m] = metric.means(keys[0], z[0], average_season=average_season)
        return np.asarray(y * self.sizes)

    def respond(self, rows: Rows, action: IntArray, control: FloatArray, name: str) -> Response:
        """Outcomes of these arms (S, n), and of control arms beside them."""
        means, M = self.means(rows), self.theta.shape[1]
        group = self.model.structure.noise_group(rows[0])  # (S, n, K)
        z = per_seed(self.seeds, f"noise {name}", lambda rng: rng.standard_normal((2, action.shape[1], M)))
        beside = np.broadcast_to(control.argmax(-1), action.shape)
        member = np.arange(len(self.seeds))[:, None]
        y = [
            np.take_along_axis(means, arm[..., None, None], -2)[..., 0, :]
            + np.matvec(self.noise[member, pick(group, arm)], z[:, i]) * self.model.unit * self.sizes
            for i, arm in enumerate((action, beside))
        ]
        for m, metric in self.linked.items():
            for i, arm in enumerate((action, beside)):
                mean = np.take_along_axis(means[..., m] / self.sizes[m], arm[..., None], -1)[..., 0]
                y[i][..., m] = metric.outcomes(mean, ndtr(z[:, i, :, m])) * self.sizes[m]
        size = np.array([self.linked[m].size for m in self.model.learner.sizes])
        return Response(y[0], y[1], np.ones(action.shape, bool), size if len(size) else None)


@dataclass(frozen=True)
class LinkedMetric:
    """A yes-or-no outcome, count or score in the worlds: draws of its posterior, one for each seed."""

    kind: str
    structure: Structure  # with values of factors that were not seen yet
    drawn: Generalised
    clusters: IntArray  # (C,)
    own: FloatArray  # (C, S, Q)
    ends: tuple[float, float]  # of a score's range; else 0 and 1
    alike: bool  # whether an average season is one for users alike
    size: float  # of each outcome: the mean of those so far

    @staticmethod
    def draw(
        model: FittedModel, seeds: Sequence[int], metric: tuple[int, int], wide: tuple[int, ...], clusters: IntArray
    ) -> LinkedMetric:
        """The metric's number, and its number among those that have draws; `wide` are the sizes of all factors."""
        learner, evidence, (m, d) = model.learner, model.evidence, metric
        if evidence.drawn is None:
            raise InputError("metrics that are not numbers have draws once the model is complete")
        structure, fitted, kind = learner.link_structure(evidence), evidence.drawn.of((), d), learner.kinds[m]
        wider = replace(structure, sizes=wide)
        picked = per_seed(seeds, f"draw {m}", lambda rng: rng.integers(len(fitted.draws), size=1))[:, 0]
        theirs = replace(fitted, draws=fitted.draws[picked], node=fitted.node[picked])
        sd = np.sqrt(generalised.variances(structure, theirs.log_tau))[theirs.node]  # (S, families)

        def new(name: str, layout: Layout, *lead: int) -> FloatArray:
            """Of columns of the wider layout, from their prior: (*lead, S, P)."""
            z = per_seed(seeds, f"{name} {m}", lambda rng: rng.standard_normal((*lead, len(layout.family))))
            return np.moveaxis(z, 0, -2) * sd[:, layout.family]

        theta, own = new("new values", wider.common), new("own effects", wider.own, len(clusters))
        theta[:, structure.common.places_in(wider.common)] = theirs.draws
        if structure.own.members:
            table = posterior_draws.table_of_clusters(
                structure, evidence.cells.live(), model.scale, m, kind, learner.sizes.get(m), clusters
            )
            known = generalised.own_effects(structure, table, fitted)[:, picked]
            own[..., structure.own.places_in(wider.own)] = known
        own[clusters < 0] = 0.0
        drawn = replace(theirs, draws=theta)
        ends = structure.ranges[m] if kind == SCORE else (0.0, 1.0)
        cells, size = evidence.cells.live(), 1.0
        if m in learner.sizes:
            told = cells.n * (cells.pattern >> m & 1)
            size = float(told @ cells.mean[:, learner.sizes[m]] / max(told.sum(), 1.0))
        return LinkedMetric(kind, wider, drawn, clusters, own, ends, learner.promise == "alike", size)

    def means(self, keys: IntArray, covariates: FloatArray, *, average_season: bool) -> FloatArray:
        """Of decisions with factors (n, K, F) and standardised covariates (n, K, c): (S, n, K)."""
        averaged = ["season"] if average_season else []
        if average_season and self.alike and self.structure.cluster != "season":
            averaged.append(self.structure.cluster)
        own = self.own[np.searchsorted(self.clusters, keys[:, 0, self.structure.cluster_place])]
        mean = generalised.mean_draws(
            self.structure, self.drawn, self.kind, keys, covariates, own=own, averaged=tuple(averaged)
        )
        low, high = self.ends
        return np.moveaxis(low + (high - low) * mean, -1, 0)

    def outcomes(self, mean: FloatArray, luck: FloatArray) -> FloatArray:
        """With these means, where luck is between 0 and 1."""
        (low, high), size, phi = self.ends, self.size, self.drawn.phi
        if self.kind == COUNT:
            return quantile(COUNT, size * mean, luck, phi) / size
        kind = SCORE if size > 1 else self.kind  # so many of several are a share, whose scale is that of one of them
        return low + (high - low) * quantile(kind, (mean - low) / (high - low), luck, phi / size)


def _correlated(covariance: FloatArray, z: FloatArray) -> FloatArray:
    """Standard normals (..., M, P) with this covariance (..., M, P, M, P)."""
    size = z.shape[-2] * z.shape[-1]
    values, vectors = np.linalg.eigh(covariance.reshape(*covariance.shape[:-4], size, size))
    root = vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]
    return np.matvec(root, z.reshape(*z.shape[:-2], size)).reshape(z.shape)
