"""A batch of worlds, one for each simulated trial: everything is drawn from streams named by seed and purpose.

    y = level + trend + arm + site + site x arm + covariates + season + block + season x arm + noise

No draw depends on what is decided, so all designs are rehearsed in the same worlds.
Shapes: S trials, L seasons, n decisions of a season, G sites (users without a group are sites of their own), K arms,
M metrics, D context fields, c covariates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from drimed import streams
from drimed.errors import InputError
from drimed.learning.offer import Offer
from drimed.linear.arrays import BoolArray, FloatArray, IntArray
from drimed.rehearsal.history import History
from drimed.rehearsal.people import Crowd
from drimed.rehearsal.setting import Setting


class Told(NamedTuple):
    """Outcomes of a season in the units of the metrics."""

    y: FloatArray  # (S, n, M)
    control: FloatArray  # (S, n, M), of a control plot beside each
    observed: BoolArray  # (S, n)


@dataclass(frozen=True)
class World:
    """The worlds of some seeds."""

    crowd: Crowd
    setting: Setting
    seeds: Sequence[int]
    past: History | None = None  # outcomes as they were then

    def contexts(self, season: int) -> list[FloatArray | None]:
        """The context of each decision in each world: n of (S, D). All plots of a user share it."""
        return self._contexts(season, self.crowd.user(season))

    def _contexts(self, season: int, user: IntArray) -> list[FloatArray | None]:
        fields = self.crowd.state.problem.covariates.fields
        if not fields:
            return [None] * len(user)
        typical, spread = (np.array([getattr(f, name) for f in fields.values()]) for name in ("typical", "spread"))
        levels = np.array([len(f.levels or ()) for f in fields.values()])
        draws = self._drawn_contexts[:, season]
        numbers = typical + spread * (draws + self.setting.drift * season)
        return list(np.swapaxes(np.where(levels > 0, draws, numbers)[:, user], 0, 1))

    @cached_property
    def _drawn_contexts(self) -> FloatArray:
        """Standard normal numbers, or levels: (S, L, H, D)."""
        fields, lead = self.crowd.state.problem.covariates.fields, (self.setting.seasons, len(self.crowd.users))
        levels = np.array([len(f.levels or ()) for f in fields.values()])
        return np.asarray(self._per_seed("contexts", lambda rng: _number_or_level(rng, lead, levels)))

    def offers(self, season: int) -> Offer:
        """What is offered in a season: (S, n)."""
        crowd = self.crowd
        blocks = crowd.block(season).tolist()
        found = crowd.state.problem.offers(
            crowd.profiles(season), self.contexts(season), crowd.available(season), blocks
        )
        return for_each_trial(found, (len(self.seeds), len(blocks)))

    def opening(self, season: int) -> Offer:
        """What everybody who is there is offered when a season opens: (S, users)."""
        state = self.crowd.states[season]
        profiles = [state.profile(user) for user in state.users]
        known = self._contexts(season, np.arange(len(profiles)))
        found = state.problem.offers(profiles, known, [None] * len(profiles))
        return for_each_trial(found, (len(self.seeds), len(profiles)))

    @cached_property
    def typical(self) -> Offer:
        """To those who are looked at, in a typical context: (S, H)."""
        problem, looked = self.crowd.state.problem, self.crowd.looked_at
        masks = [problem.available(p, ()) for p in looked]
        found = problem.offers(looked, [problem.covariates.typical] * len(looked), masks)
        return for_each_trial(found, (len(self.seeds), len(looked)))

    def means(self, season: int, offers: Offer) -> FloatArray:
        """The mean outcome of each arm for each decision, in an average season like this one: (S, n, K, M)."""
        s = self.setting
        found = self.lasting[:, self.crowd.group(season)] + s.trend * season + s.fading * season
        return found + self._of_covariates(offers, found.shape[:-2])

    def respond(self, season: int, action: IntArray, means: FloatArray) -> Told:
        """What happens where these arms are given: (S, n)."""
        s, crowd = self.setting, self.crowd
        own, beside = self._noise(season)
        mean = means + self._of_season(season)  # (S, n, K, M)
        control = np.stack([p.control[: mean.shape[-2]] for p in crowd.profiles(season)]).argmax(-1)
        plot = np.broadcast_to(control, action.shape)
        y, y0 = (np.take_along_axis(mean, a[..., None, None], -2)[..., 0, :] for a in (action, plot))
        low, high = s.bounds.T
        return Told(np.clip(y + own, low, high), np.clip(y0 + beside, low, high), self._comes(season, action.shape))

    def _comes(self, season: int, shape: tuple[int, ...]) -> BoolArray:
        """Whether each outcome ever does: (S, n)."""
        if not self.setting.dropout:
            return np.ones(shape, bool)
        drawn = [streams.uniforms(int(i), f"dropout {season}", 0, shape[1], 1)[:, 0] for i in self.seeds]
        return np.asarray(np.stack(drawn) >= self.setting.dropout)

    def _of_season(self, season: int) -> FloatArray:
        """What a season has of its own, for each decision: (S, n, K, M)."""
        group = self.crowd.group(season)
        if self.past is not None:
            year, site = self._drawn_years[:, season], self._past_sites[:, group]  # (S, Y), (S, n)
            then = self.past.mean[self._year_of(year, site), site]
            return np.asarray(then - self.past.lasting[site])
        level, arm = self.season_effects
        block = self.block_effects[:, season, self.crowd.block(season), group]
        return np.asarray(level[:, season, None, None, :] + block[..., None, :] + arm[:, season, None, :, :])

    @property
    def _then(self) -> History:
        if self.past is None:
            raise InputError("a scenario is as in the past, and there is none")
        return self.past

    @cached_property
    def _past_sites(self) -> IntArray:
        """Which site of the past each group is: the one of its name, or of its only user's, or any: (S, G)."""
        past, names = self._then.sites, self.crowd.groups
        drawn = self._per_seed("past sites", lambda rng: rng.integers(len(past), size=len(names)))
        known = np.array([past.index(n) if n in past else -1 for n in names])
        return np.where(known >= 0, known, drawn).astype(np.intp)

    @cached_property
    def _drawn_years(self) -> IntArray:
        """Seasons of the past in random order: for each site the first in which it was there counts. (S, L, Y)"""
        Y, L = len(self._then.seasons), self.setting.seasons
        order = self._per_seed("past seasons", lambda rng: np.stack([rng.permutation(Y) for _ in range(L)]))
        return order.astype(np.intp)

    def _year_of(self, order: IntArray, site: IntArray) -> IntArray:
        there = self._then.present[order[:, None, :], site[..., None]]  # (S, n, Y)
        return np.take_along_axis(order[:, None, :], there.argmax(-1)[..., None], -1)[..., 0]

    @cached_property
    def lasting(self) -> FloatArray:
        """The mean outcome of each arm at each site in the first season, without covariates: (S, G, K, M)."""
        if self.past is not None:
            return self.past.lasting[self._past_sites]
        s, K, G = self.setting, len(self.crowd.state.problem.arms), len(self.crowd.groups)
        arm = self._normal("arms", s.spread, K)
        arm[:, list(self._controls)] = 0.0
        site = self._normal("sites", s.site, G)[:, :, None, :]
        both = self._normal("sites and arms", s.site_arm, G, K)
        both[:, :, list(self._controls)] = 0.0
        return s.level + s.effects + arm[:, None] + site + both

    @cached_property
    def slopes(self) -> tuple[FloatArray, FloatArray]:
        """What a covariate does to the level, and to each arm: (S, c, M), (S, c, K, M)."""
        covariates, _ = self.crowd.state.problem.covariates.counted
        c, K = len(covariates), len(self.crowd.state.problem.arms)
        level = self._normal("slopes", self.setting.covariates, c)
        level *= np.array([["level" in v.roles] for v in covariates]).reshape(c, 1)
        arm = self._normal("slopes of arms", self.setting.covariate_effects, c, K)
        arm *= np.array(["effects" in v.roles for v in covariates]).reshape(c, 1, 1)
        arm[:, :, list(self._controls)] = 0.0
        return level, arm

    @cached_property
    def season_effects(self) -> tuple[FloatArray, FloatArray]:
        """What a season does to all, and to each arm: (S, L, M), (S, L, K, M)."""
        s, K = self.setting, len(self.crowd.state.problem.arms)
        level = self._normal("seasons", s.season, s.seasons)
        return level, self._normal("seasons and arms", s.season_arm, s.seasons, K)

    @cached_property
    def block_effects(self) -> FloatArray:
        """Of each block of a site in each season; without blocks a site is one: (S, L, B, G, M)."""
        s = self.setting
        B = 1 + max(int(self.crowd.block(season).max()) for season in range(s.seasons))
        return self._normal("blocks", s.block, s.seasons, B, self.lasting.shape[1])

    @cached_property
    def effects(self) -> FloatArray:
        """Of each arm for those who are looked at, at the end, on the reward and on each metric: (S, H, K, 1 + M)."""
        s, looked = self.setting, self.crowd.looked_at
        group = np.array([self.crowd.group_of(p) for p in looked])
        found = self.lasting[:, np.maximum(group, 0)]
        if self.past is not None and (group < 0).any():
            found = np.where((group < 0)[:, None, None], self.past.lasting.mean(0), found)
        elif (group < 0).any():  # somebody typical has nothing of a site's own
            typical = np.broadcast_to(s.level + s.effects, found.shape)
            found = np.where((group < 0)[:, None, None], typical, found)
        found = found + s.fading * (s.seasons - 1) + self._of_covariates(self.typical, found.shape[:-2])
        reward = np.einsum("shkm,hm->shk", found, np.stack([p.preference for p in looked]) / self._sizes)
        control = np.stack([p.control[: found.shape[-2]] for p in looked])
        both = np.concatenate([reward[..., None], found], -1)
        return np.asarray(both - np.einsum("shko,hk->sho", both, control)[:, :, None, :])

    @property
    def _sizes(self) -> FloatArray:
        return self.crowd.state.problem.sizes

    @cached_property
    def _controls(self) -> set[int]:
        """Arms that are somebody's whole control: effects are against them."""
        found = (p.control for p in self.crowd.state.profiles.values())
        return {int(c.argmax()) for c in found if c.max() == 1.0}

    def _of_covariates(self, offers: Offer, lead: tuple[int, ...]) -> FloatArray:
        z = None if offers.unit is None else offers.unit.covariates
        if z is None or self.past is not None:  # what was measured has it in it
            return np.zeros(())
        level, arm = self.slopes
        z = np.broadcast_to(z, (*lead, z.shape[-1]))
        return np.asarray(np.einsum("snc,scm->snm", z, level)[..., None, :] + np.einsum("snc,sckm->snkm", z, arm))

    def _noise(self, season: int) -> tuple[FloatArray, FloatArray]:
        """Of each decision's plot, and of a control plot beside it: (S, n, M) twice."""
        s, n, M = self.setting, len(self.crowd.seasons[season]), len(self.setting.noise)
        if self.past is not None:
            left = self.past.repeats if len(self.past.repeats) else np.zeros((1, M))
            at = self._per_seed(f"noise {season}", lambda rng: rng.integers(len(left), size=(2, n))).astype(np.intp)
            return left[at[:, 0]], left[at[:, 1]]
        z = self._per_seed(f"noise {season}", lambda rng: rng.standard_normal((2, n, M + 1)))
        own, shared = (1.0, 0.0) if M == 1 else (np.sqrt(1 - s.correlation), np.sqrt(s.correlation))
        found = s.noise * (own * z[..., :M] + shared * z[..., M:])
        return found[:, 0], found[:, 1]

    def _normal(self, name: str, sd: FloatArray, *shape: int) -> FloatArray:
        if not sd.any():
            return np.zeros((len(self.seeds), *shape, len(sd)))
        return sd * self._per_seed(name, lambda rng: rng.standard_normal((*shape, len(sd))))

    def policy_draws(self, width: int) -> FloatArray:
        """Of all decisions of the trial: (S, n of all seasons, width)."""
        n = sum(map(len, self.crowd.seasons))
        return np.stack([streams.uniforms(int(seed), "policy", 0, n, width) for seed in self.seeds])

    def _per_seed(self, name: str, draw: Callable[[np.random.Generator], Any]) -> Any:
        return np.stack([draw(streams.generator(int(seed), name)) for seed in self.seeds])


def for_each_trial(offers: Offer, lead: tuple[int, int]) -> Offer:
    """The same offers with an axis of trials."""

    def wide(values: FloatArray | None, core: int) -> FloatArray | None:
        return None if values is None else np.broadcast_to(values, (*lead, *values.shape[values.ndim - core :]))

    cores = {"features": 2, "control": 1, "sigma": 1, "maps": 3, "whitening": 3, "scale": 0, "preference": 1,
             "context": 1, "available": 1}  # fmt: skip
    widened: dict[str, Any] = {name: wide(getattr(offers, name), core) for name, core in cores.items()}
    return replace(offers, **widened)


def _number_or_level(rng: np.random.Generator, lead: tuple[int, int], levels: IntArray) -> FloatArray:
    """A standard normal number for each field, or the number of one of its levels: (*lead, D)."""
    z, u = rng.standard_normal((*lead, len(levels))), rng.random((*lead, len(levels)))
    return np.where(levels > 0, np.floor(u * levels), z)
