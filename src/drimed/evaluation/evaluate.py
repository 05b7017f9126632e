"""Off-policy evaluation that streams: one pass over the log, any number of targets and estimators, bounded memory."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar, final

import numpy as np

from drimed.errors import ConfigError, InputError, UnknownNameError
from drimed.evaluation import intervals
from drimed.evaluation.estimators import Estimator, Parts
from drimed.evaluation.intervals import Anytime, Bootstrap, Interval, Statistics
from drimed.evaluation.log import Log, unknown_propensity
from drimed.evaluation.paired import Difference, Paired
from drimed.evaluation.target import Decisions, Overlap, Target, Weights, missing_support
from drimed.linear.arrays import FloatArray

S = TypeVar("S", Overlap, Statistics, Bootstrap, Paired)

ROWS = 65_536  # decisions at a time: the arrays of one piece stay in the processor's cache


@final
@dataclass(frozen=True, slots=True)
class Estimate:
    """What one estimator says about one target; where `refused` says why not, the numbers are NaN.

    Where all decisions that count say the same, there is a value and no interval: it is NaN.
    """

    target: str
    estimator: str
    value: float
    standard_error: float
    interval: Interval
    bootstrap: Interval | None = None
    anytime: Interval | None = None
    refused: str | None = None


@final
@dataclass(frozen=True, slots=True)
class Evaluation:
    """Everything that was asked, with what the log has to say about it."""

    decisions: int
    arms: tuple[str, ...]
    mean_reward: float  # what the logging policy earned
    estimates: list[Estimate]
    overlaps: dict[str, Overlap | None]  # by target; None where propensities are unknown or support is missing
    warnings: dict[str, list[str]]  # by target
    differences: list[Difference] = field(default_factory=list)  # to the target that the plan compares with

    def estimate(self, target: str, estimator: str) -> Estimate:
        """One of the estimates, by names."""
        for each in self.estimates:
            if (each.target, each.estimator) == (target, estimator):
                return each
        known = ", ".join(f"{e.target}/{e.estimator}" for e in self.estimates)
        raise InputError(f"no estimate {target}/{estimator}; there are {known}")

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; NaN becomes None."""
        overlaps = {name: None if o is None else _overlap_dict(o) for name, o in self.overlaps.items()}
        return _plain(
            {
                "decisions": self.decisions,
                "arms": list(self.arms),
                "mean_reward": self.mean_reward,
                "estimates": [asdict(e) for e in self.estimates],
                "differences": [asdict(d) for d in self.differences],
                "overlap": overlaps,
                "warnings": self.warnings,
            }
        )


@final
@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to compute."""

    targets: Sequence[Target]
    estimators: Sequence[Estimator]
    level: float = 0.95
    reward_range: tuple[float, float] | None = None  # with it, IPS gets an interval that holds at all times
    resamples: int = 0  # of the bootstrap; 0: none
    by_user: bool = False  # overlap for each user
    seed: int = 0
    against: str | None = None  # the target that the others are compared with, decision by decision

    def __post_init__(self) -> None:
        if not self.targets or not self.estimators:
            raise ConfigError("give at least one target and one estimator")
        for kind in ("targets", "estimators"):
            names = [each.name for each in getattr(self, kind)]
            if len(set(names)) < len(names):
                raise ConfigError(f"{kind} must have different names, got {', '.join(names)}")
        if self.against is not None and self.against not in (names := [target.name for target in self.targets]):
            raise UnknownNameError("policy to compare with", self.against, names)
        intervals.normal(0.0, 1.0, self.level)


@dataclass
class _OfTarget:
    """The sums of one target."""

    overlap: Overlap | None = None
    anytime: Anytime | None = None
    statistics: dict[str, Statistics] = field(default_factory=dict)
    bootstraps: dict[str, Bootstrap] = field(default_factory=dict)
    paired: dict[str, Paired] = field(default_factory=dict)  # with the target to compare with
    unsupported: str | None = None  # why weighting is refused
    failed: dict[str, str] = field(default_factory=dict)  # estimator -> why it is refused


class Tally:
    """Sums over the decisions seen so far. Two tallies of one plan merge, except for the order that `anytime` needs."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._targets = {target.name: _OfTarget() for target in plan.targets}
        self._count, self._rewards, self._arms = 0, 0.0, tuple[str, ...]()
        self._unknown: str | None = None

    def add(self, log: Log) -> None:
        """The next decisions."""
        if self._count and log.arms != self._arms:
            raise InputError(f"all pieces of a log must have the same arms, got {log.arms} after {self._arms}")
        self._arms = log.arms
        self._count += len(log)
        self._rewards += float(log.reward.sum())
        self._unknown = self._unknown or unknown_propensity(log)
        for begin in range(0, len(log), ROWS):
            piece = log if len(log) <= ROWS else log.rows(begin, begin + ROWS)
            terms = {t.name: self._add(self._targets[t.name], piece, t.probabilities(piece)) for t in self.plan.targets}
            if self.plan.against is not None:
                self._compare(terms, terms[self.plan.against])

    def merge(self, other: Tally) -> Tally:
        """The sums of both, as if other's decisions had come after."""
        if self.plan.reward_range is not None:
            raise ConfigError("intervals that hold at all times depend on the order of decisions and do not merge")
        both = Tally(self.plan)
        both._count, both._rewards = self._count + other._count, self._rewards + other._rewards
        both._arms, both._unknown = self._arms or other._arms, self._unknown or other._unknown
        for name, mine in self._targets.items():
            both._targets[name] = _merged(mine, other._targets[name])
        return both

    def result(self) -> Evaluation:
        """What follows from the decisions so far."""
        if not self._count:
            raise InputError("the log is empty: there is nothing to evaluate")
        estimates, warnings = [], {}
        for target in self.plan.targets:
            sums = self._targets[target.name]
            weighting = self._unknown or sums.unsupported or (sums.overlap and sums.overlap.missing())
            estimates += [self._estimate(target.name, e, sums, weighting or None) for e in self.plan.estimators]
            warnings[target.name] = sums.overlap.warnings() if sums.overlap and not weighting else []
            warnings[target.name] += _without_interval(e for e in estimates if e.target == target.name)
        overlaps = {n: None if self._unknown or s.unsupported else s.overlap for n, s in self._targets.items()}
        mean, answered = self._rewards / self._count, {(e.target, e.estimator) for e in estimates if not e.refused}
        return Evaluation(
            self._count, self._arms, mean, estimates, overlaps, warnings, list(self._differences(answered))
        )

    def _compare(self, terms: dict[str, dict[str, Parts]], base: dict[str, Parts]) -> None:
        """Each target's terms beside those of the one to compare with."""
        for name, mine in terms.items():
            if name != self.plan.against:
                paired = self._targets[name].paired
                for estimator in mine.keys() & base.keys():
                    more = Paired.of(mine[estimator], base[estimator])
                    paired[estimator] = _together(paired.get(estimator), more)

    def _differences(self, answered: Container[tuple[str, str]]) -> Iterator[Difference]:
        """Of every target to the one to compare with, where both were answered."""
        against, level = self.plan.against, self.plan.level
        for target, sums in self._targets.items():
            for name in [e.name for e in self.plan.estimators if e.name in sums.paired]:
                if against is not None and (target, name) in answered and (against, name) in answered:
                    value, error = sums.paired[name].value, sums.paired[name].standard_error
                    yield Difference(target, against, name, value, error, intervals.normal(value, error, level))

    def _add(self, sums: _OfTarget, piece: Log, target: FloatArray) -> dict[str, Parts]:
        """One target's sums go on; returns its terms, by estimator."""
        decisions, plan = Decisions(piece, target), self.plan
        sums.unsupported = sums.unsupported or missing_support(piece, target)
        blocked = self._unknown or sums.unsupported
        if not blocked:
            sums.overlap = _together(sums.overlap, Overlap.of(decisions, by_user=plan.by_user))
            if plan.reward_range is not None:
                so_far = sums.anytime or Anytime.start(plan.reward_range, plan.level)
                sums.anytime = so_far.extend(decisions.weight, decisions.reward)
        terms = {}
        for estimator in plan.estimators:
            if (estimator.weighs and blocked) or estimator.name in sums.failed:
                continue
            try:
                parts = estimator.parts(decisions)
            except InputError as error:
                sums.failed[estimator.name] = str(error)
                continue
            name = estimator.name
            terms[name] = parts
            sums.statistics[name] = _together(sums.statistics.get(name), Statistics.of(parts))
            if plan.resamples:
                more = Bootstrap.of(parts, start=piece.start, resamples=plan.resamples, seed=plan.seed)
                sums.bootstraps[name] = _together(sums.bootstraps.get(name), more)
        return terms

    def _estimate(self, target: str, estimator: Estimator, sums: _OfTarget, weighting: str | None) -> Estimate:
        name, level = estimator.name, self.plan.level
        refused = (weighting if estimator.weighs else None) or sums.failed.get(name)
        if refused is None and np.isnan(sums.statistics[name].value):
            refused = "no decision of the log counts for this target: its weights are all zero"
        if refused:
            return Estimate(target, name, np.nan, np.nan, Interval(np.nan, np.nan, level, "normal"), refused=refused)
        found = sums.statistics[name]
        return Estimate(
            target,
            name,
            found.value,
            found.standard_error,
            intervals.normal(found.value, found.standard_error, level),
            sums.bootstraps[name].interval(level) if name in sums.bootstraps else None,
            sums.anytime.interval() if sums.anytime and name == "ips" else None,
        )


def evaluate(chunks: Iterable[Log] | Log, plan: Plan) -> Evaluation:
    """One pass over a log, whole or in pieces.

    >>> from drimed.evaluation import estimators, target
    >>> from drimed.evaluation.log import make_log
    >>> log = make_log(action=[0, 1, 0, 1], reward=[1.0, 3.0, 1.0, 3.0], propensity=[0.5] * 4)
    >>> plan = Plan(targets=[target.uniform(), target.always("1")], estimators=[estimators.ips()])
    >>> [estimate.value for estimate in evaluate(log, plan).estimates]
    [2.0, 3.0]
    """
    if isinstance(chunks, str | Path):
        raise InputError(f"a log must be read first: evaluate(read_log({str(chunks)!r}), plan)")
    tally = Tally(plan)
    for log in [chunks] if isinstance(chunks, Log) else chunks:
        tally.add(log)
    return tally.result()


def _merged(mine: _OfTarget, theirs: _OfTarget) -> _OfTarget:
    return _OfTarget(
        overlap=_together(mine.overlap, theirs.overlap) if theirs.overlap else mine.overlap,
        statistics=_each(mine.statistics, theirs.statistics),
        bootstraps=_each(mine.bootstraps, theirs.bootstraps),
        paired=_each(mine.paired, theirs.paired),
        unsupported=mine.unsupported or theirs.unsupported,
        failed=theirs.failed | mine.failed,
    )


def _each(mine: dict[str, S], theirs: dict[str, S]) -> dict[str, S]:
    return mine | {name: _together(mine.get(name), sums) for name, sums in theirs.items()}


def _together(mine: S | None, theirs: S) -> S:
    return theirs if mine is None else mine.merge(theirs)


def _without_interval(estimates: Iterable[Estimate]) -> list[str]:
    names = [e.estimator for e in estimates if not e.refused and np.isnan(e.standard_error)]
    if not names:
        return []
    return [f"no interval for {', '.join(names)}: the decisions that count all say the same, or there is only one"]


def _overlap_dict(overlap: Overlap) -> dict[str, Any]:
    def told(weights: Weights) -> dict[str, Any]:
        return {
            "decisions": weights.count,
            "effective_sample_size": weights.effective,
            "largest_weight": weights.largest,
            "mean_weight": weights.mean,
        }

    return {
        **told(overlap.weights),
        "logged": dict(zip(overlap.arms, overlap.logged.tolist(), strict=True)),
        "wanted": dict(zip(overlap.arms, overlap.wanted.tolist(), strict=True)),
        "by_user": {str(user): told(w) for user, w in overlap.by_user.items()},
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and np.isnan(value) else value
