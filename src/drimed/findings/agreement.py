"""Does what is known without a model agree with the model, and where it is silent, why?

The model and the propensities disagree about an effect where their ranges at all times have nothing in common. Both are
taken so wide that this happens by chance, in any look and to any arm or group, at most at the rate that is said: for
each half of it is divided among all effects that could be compared. (The guaranteed ranges of the paper's model hold
together as they are.) The model speaks of all users in an average season, the propensities of the decisions so far:
effects that differ between users or seasons more than the model knows part the two as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from drimed.evaluation import running, scores
from drimed.findings import field
from drimed.findings.effects import EVERYBODY, MODEL, available, groups, may_get
from drimed.findings.inference import Inference
from drimed.formatting import amount, counted, listed, short
from drimed.learning.field.contrasts import Known
from drimed.linear.arrays import FloatArray
from drimed.records import Alarm, Effect
from drimed.trial.gather import Gathered
from drimed.trial.model_free import LEVEL, PROPENSITIES, REWARD, ROUND_OFF, Decisions, ranges
from drimed.trial.model_ranges import offers_now

RATE = 0.01  # of false alarms, over all looks, arms and groups together
MOST_SILENT = 3  # arms that have a sentence of their own
FLOOR = 0.05  # that is suggested where there is none
ADVICE = (
    "where the logged probabilities are true and outcomes are not missing because of what they were, believe the range "
    "that needs no model; look below at what the model leaves, and at whether effects differ between users or seasons"
)

Scarce = Literal["arm", "control", "both", "outcomes"]


@dataclass(frozen=True)
class Apart:
    """An effect about which the model and the propensities disagree, with the ranges that have nothing in common."""

    who: str
    arm: str
    model: tuple[float, float]
    model_free: tuple[float, float]
    unit: str = ""  # of the reward

    @property
    def says(self) -> str:
        """In words."""
        one, other = (f"{short(low)} to {amount(high, self.unit)}" for low, high in (self.model, self.model_free))
        return (
            f"the effect of {self.arm} for {self.who} is {one} by the model, and {other} by logged probabilities alone"
        )


@dataclass(frozen=True)
class Silent:
    """An arm of which propensities cannot tell the effect for all users yet, and what would change that."""

    arm: str
    scarce: Scarce
    plays: float  # expected, of what is scarce
    half: float | None  # of the range that as many decisions again would give with FLOOR; None: too few to say
    decisions: int
    floor: float  # that the trial has under what is scarce now; 0: none
    unit: str = ""  # of the reward

    @property
    def says(self) -> str:
        """In words."""
        start = f"Nothing can be said about {self.arm} without the model yet: "
        if self.scarce == "outcomes":
            return start + "the outcomes that are there hardly differ from what was predicted, or only a few do."
        if self.scarce == "both":
            both = f"where {self.arm} and the control both had a chance, the rarer of the two had"
            needed = f"{both} {short(self.plays)} plays in expectation, and {scores.PLAYS:g} are needed."
            return f"{start}{needed}{self._takes if self.floor > 0 else self._would}"
        what = self.arm if self.scarce == "arm" else "the control"
        needed = f"{what} had chances that add up to {short(self.plays)} plays, and {scores.PLAYS:g} are needed."
        if self.floor > 0:
            return f"{start}{needed}{self._takes}"
        return start + needed + self._would

    @property
    def _takes(self) -> str:
        """What the floor that there is will do."""
        more = counted(max(1, int(np.ceil((scores.PLAYS - self.plays) / self.floor))), "more decision")
        whose = "the floors" if self.scarce == "both" else "its floor"
        return f" With {whose} that takes about {more}."

    @property
    def _would(self) -> str:
        """What a floor would do."""
        name = "control" if self.scarce == "control" else "arms"
        guarded = "" if self.scarce == "control" else ", where the guard allows it"
        if self.half is None:
            return f" A floor would change that ([floors] {name} = {FLOOR:g}{guarded})."
        more = counted(self.decisions, "more decision")
        wide = f"{more} would give a range of about {amount(self.half, self.unit)} to either side"
        return f" With [floors] {name} = {FLOOR:g}{guarded}, {wide}."


@dataclass(frozen=True)
class Agreement:
    """The model beside the propensities."""

    compared: int
    rate: float  # of false alarms
    apart: list[Apart]
    silent: list[Silent]

    @property
    def says(self) -> str:
        """In one sentence."""
        if not self.compared:
            return "cannot be compared: the logged probabilities alone tell no effect yet."
        effects = counted(self.compared, "effect")
        by_chance = f"(false-alarm rate {100 * self.rate:g} %)"
        if self.apart:
            return f"they disagree about {len(self.apart)} of {effects} {by_chance}; see above."
        return f"no sign that they disagree, in {effects} {by_chance}."

    @property
    def silences(self) -> list[str]:
        """Why nothing can be told of some arms: of many that are alike, one sentence for all."""
        many = [x for x in self.silent if x.scarce == "arm"]
        if len(many) <= MOST_SILENT:
            return [x.says for x in self.silent]
        return [_of_many(many), *(x.says for x in self.silent if x.scarce != "arm")]

    @property
    def alarms(self) -> list[Alarm]:
        """One for all: they have one cause."""
        if not self.apart:
            return []
        more = f", and {counted(len(self.apart) - 1, 'more effect')}" if len(self.apart) > 1 else ""
        return [Alarm(f"without the model the answer is another: {self.apart[0].says}{more}", None, ADVICE)]


def _of_many(arms: Sequence[Silent]) -> str:
    """Arms that were played too rarely, in one sentence."""
    most = max(arms, key=lambda x: x.plays)
    which = f"{counted(len(arms), 'arm')} without the model yet ({listed([x.arm for x in arms], MOST_SILENT)})"
    needs = f"each needs chances that add up to {scores.PLAYS:g} plays, and the most that one of them had is"
    would = "" if most.floor else most._would
    return f"Nothing can be said about {which}: {needs} {short(most.plays)} ({most.arm}).{would}"


def agreement(seen: Gathered, fit: Inference, effects: Sequence[Effect]) -> Agreement:
    """Compare what can be compared; `effects` are all that were found."""
    state, members = seen.state, groups(seen.state)
    of = {(x.who, x.arm, x.source): x for x in effects if x.on == REWARD}
    pairs = [
        (x, of[x.who, x.arm, MODEL]) for x in of.values() if x.source == PROPENSITIES and (x.who, x.arm, MODEL) in of
    ]
    pairs = [(free, model) for free, model in pairs if not model.is_control]
    possible = len(members) * len(state.problem.arms)
    alpha = RATE / (2 * possible)
    found = []
    for free, model in pairs:
        if not _parted(free.ends, model.ends):
            continue  # narrower ranges have something in common
        some = members[free.who]
        wide = ranges(seen, {free.who: some}, [free.arm], alpha=alpha)[free.who, free.arm]
        by_model = _by_model(seen, fit, some, free.arm, alpha) or model.ends
        if _parted(wide, by_model):
            found.append(Apart(free.who, free.arm, by_model, wide, state.spec.reward.unit))
    rate = RATE if isinstance(fit, Known) else state.spec.delta + RATE / 2
    return Agreement(len(pairs), rate, found, _silent(seen, of, members))


def foreseen(deviation: float, floor: float, decisions: int) -> float | None:
    """Half the range that so many decisions would give, with chances `floor` and 1 - floor; None: too few.

    >>> round(foreseen(1.0, 0.05, 480) or 0.0, 2)
    0.64
    """
    count = np.arange(1, decisions + 1, dtype=np.float64)
    begun = floor * count >= scores.PLAYS - ROUND_OFF
    if not (begun.any() and deviation > 0):
        return None
    V = deviation**2 * (1 / floor + 1 / (1 - floor)) * count
    band = running.asymptotic(np.zeros(decisions), count, V, begun, 1 - LEVEL)
    return float(band.high[-1])


def _parted(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[1] < other[0] or other[1] < one[0]


def _by_model(seen: Gathered, fit: Inference, some: list[int], arm: str, alpha: float) -> tuple[float, float] | None:
    """The range at all times at another level; None: the guaranteed range is for all effects at once already."""
    if not isinstance(fit, Known):
        return None
    state = seen.state
    can = may_get(state, list(state.users))
    low, high = field.group_ranges_at(fit, offers_now(state), some, can, alpha)
    k = state.problem.arm(arm)
    return float(low[k]), float(high[k])


def _silent(
    seen: Gathered, of: Mapping[tuple[str, str, str], Effect], members: Mapping[str, list[int]]
) -> list[Silent]:
    """Arms that were given, of which the propensities tell nothing for all users."""
    state, log = seen.state, Decisions.of(seen, seen.reward)
    n, everybody = len(log.at), members[EVERYBODY]
    if not n:
        return []
    possible = np.asarray(available(state, list(state.users)).any(0))
    control = float(log.control_plays()[everybody].sum())
    floors = np.zeros(2) if seen.floor is None or not len(seen.floor) else seen.floor[-1]
    half = foreseen(_deviation(log), FLOOR, n)
    found = []
    for k, arm in enumerate(state.problem.arms):
        if not possible[k] or (EVERYBODY, arm, PROPENSITIES) in of or log.is_control(k):
            continue
        plays = float(log.plays(k)[everybody].sum())
        fewer = min(plays, control)
        scarce: Scarce = "arm" if plays <= control else "control"
        if fewer >= scores.PLAYS - ROUND_OFF:
            fewer = log.together(k)
            scarce = "both" if fewer < scores.PLAYS else "outcomes"
        floor = float({"control": floors[0], "both": floors.min()}.get(scarce, floors[1]))
        found.append(Silent(arm, scarce, fewer, half, n, floor, state.spec.reward.unit))
    return found


def _deviation(log: Decisions) -> float:
    """Of outcomes from what was predicted before them, each of the arm that was played."""
    predicted: FloatArray = log.predictions(np.zeros(0, np.intp))[:, -1]
    return float(np.sqrt(np.mean((log.measured[log.at[1:]] - predicted[1:]) ** 2))) if len(log.at) > 1 else 0.0
