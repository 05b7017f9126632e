"""The stopping rules of the trial file in simulated trials: each is looked at as a live trial looks at itself.

What a look says of a state, when it is due, and what follows are the live functions. Each simulated trial has a state
of its own for that: its part of the batch, and its decisions as a live one gathers them. Nobody is there who would
resume a trial that a rule has paused, so it goes on at once.
Shapes: S trials, n decisions so far, R rules, U users of the whole trial, K arms, M metrics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from drimed.linear.arrays import BoolArray, FloatArray, IntArray, pick
from drimed.rehearsal.looks import weights
from drimed.rehearsal.scenarios import SimulatedTrials
from drimed.trial import events as kinds
from drimed.trial import looks
from drimed.trial.gather import Gathered, outcomes
from drimed.trial.parts import StoppingRule
from drimed.trial.state import Counts, Episode, TrialState
from drimed.trial.stopping import BY_HAND, Looked, after_look, due, has_floor, most_decisions

if TYPE_CHECKING:
    from drimed.rehearsal.play import Season


@dataclass
class Watch:
    """What looks have found in each trial so far."""

    world: SimulatedTrials
    looked: list[Looked] = field(default_factory=list)  # S
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
        seen = told.gathered(state, s) if looks.beyond_model(state) else None
        done: set[str] = set()
        while (cause := BY_HAND if last else due(state, opens=True)) is not None and cause not in done:
            done.add(cause)
            body = self.said[s] = looks.says(state, seen, cause)
            state = replace(state, looked=after_look(state.looked, now + 1, body))
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
        view, on = self.world.population.state.looked.views[name], self.rules[name].metric
        arms = [self.world.population.state.problem.arm(found["arm"]) for found in claim["ranges"]]
        truth = self._truth(view.by, claim["who"])[s, arms, 0 if on is None else 1 + self._metrics.index(on)]
        return bool((view.rule(self.rules[name]).distance(truth, truth) >= 0).any())

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

    def gathered(self, state: TrialState, s: int) -> Gathered:
        """Those of one trial, as a live one gathers its own."""
        n, there = len(self.slot), self.there[s][:, None]
        y, control = (np.where(there, values[s], np.nan) for values in (self.y, self.control))
        return Gathered(
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
            **outcomes(state, self.slot, y, control),
        )


def _member(batch: Any, like: Any, s: int) -> Any:
    """One member of a batch of states; `like` is a state without a batch, which tells what belongs to all members."""
    if is_dataclass(batch) and not isinstance(batch, type):
        parts = {f.name: _member(getattr(batch, f.name), getattr(like, f.name), s) for f in fields(batch)}
        return type(batch)(**parts)
    return batch[s] if isinstance(batch, np.ndarray) and batch.ndim > np.ndim(like) else batch
