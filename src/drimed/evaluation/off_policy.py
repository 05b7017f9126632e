"""Off-policy evaluation: values of other policies from one pass over a log, with intervals, in bounded memory.

Every estimator is three terms per decision, so that all of them stream and get intervals alike (docs/evaluation.md):

    value = mean(base) + mean(correction) / mean(normaliser)

Sources: Dudik et al. (2014) for the direct method, IPS and doubly robust; Swaminathan and Joachims (2015) for
self-normalisation; Waudby-Smith et al. (2024) for intervals at all times. Shapes: n decisions, K arms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, cast, final

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from drimed.errors import ConfigError, InputError, ShapeError, UnknownNameError
from drimed.evaluation.confidence_sequences import Lower
from drimed.evaluation.decision_log import ROWS, SUM_TOLERANCE, Log
from drimed.numerics import arrays
from drimed.numerics.arrays import FloatArray, outer, pick

NAMED_TARGETS = ("uniform", "control", "logged", "arm=NAME", "columns=PREFIX")
SUSPECT = 4.0  # standard errors that the mean weight may be away from 1: by chance once in 16,000 logs
THIN = 0.01  # an effective share of the log below this gives a warning
FEW = 50.0  # effective decisions below which the central limit theorem has not set in
NEEDS_PREDICTIONS = "this estimator needs predictions of the reward of every arm (columns q_ARM), and the log has none"
NO_VARIANCE = 1e-13  # relative to the squared size of the terms: what sums in double precision leave of a variance of 0


@final
@dataclass(frozen=True, slots=True)
class TargetPolicy:
    """A policy to evaluate: for each logged decision, the probability of each arm, from the log alone."""

    name: str
    probabilities: Callable[[Log], FloatArray]  # -> (K,), the same for every decision, or (n, K)

    @classmethod
    def uniform(cls) -> TargetPolicy:
        """Every available arm alike."""

        def probabilities(log: Log) -> FloatArray:
            possible = np.ones(log.K) if log.available is None else log.available
            return possible / possible.sum(-1, keepdims=True)

        return cls("uniform", probabilities)

    @classmethod
    def always(cls, arm: str, *, name: str | None = None) -> TargetPolicy:
        """One arm for all users."""

        def probabilities(log: Log) -> FloatArray:
            if arm not in log.arms:
                raise UnknownNameError("arm", arm, log.arms)
            return np.eye(log.K)[log.arms.index(arm)]

        return cls(name or f"arm={arm}", probabilities)

    @classmethod
    def logged(cls) -> TargetPolicy:
        """The policy that wrote the log, from its logged probabilities of all arms."""
        needs = "target 'logged' needs the probabilities of all arms; this log has only that of the arm played"
        return cls("logged", lambda log: _needed(log.probabilities, needs))

    @classmethod
    def columns(cls, prefix: str) -> TargetPolicy:
        """Probabilities that the log carries, one column for each arm."""
        how = f"read it with columns=Columns(targets=({prefix!r},))"
        needs = f"the log has no target probabilities under {prefix!r}; {how}"
        return cls(f"columns={prefix}", lambda log: _needed(log.targets.get(prefix), needs))

    @classmethod
    def fixed(cls, name: str, pmf: Any) -> TargetPolicy:
        """The same lottery (K,) at every decision, or one row (n, K) for each decision of the whole log."""
        p = arrays.probabilities("pmf", arrays.finite("pmf", pmf))

        def probabilities(log: Log) -> FloatArray:
            end = log.start + len(log)
            if p.shape[-1] != log.K:
                raise InputError(f"target {name!r} has {p.shape[-1]} arms, the log has {log.K}")
            if p.ndim > 1 and end > len(p):
                raise InputError(f"target {name!r} has {len(p)} rows, the log has at least {end} decisions")
            return p if p.ndim == 1 else p[log.start : end]

        return cls(name, probabilities)

    @classmethod
    def by_user(cls, name: str, pmfs: Mapping[Any, Any]) -> TargetPolicy:
        """A lottery for each user, such as a recommendation: user -> (K,)."""
        table = {user: arrays.probabilities(f"pmf of {user}", arrays.finite("pmf", p)) for user, p in pmfs.items()}

        def probabilities(log: Log) -> FloatArray:
            users = _needed(log.user, f"target {name!r} depends on the user, and the log has no users").tolist()
            missing = [user for user in users if user not in table]
            if missing:
                raise InputError(f"target {name!r} says nothing about user {missing[0]!r}")
            return np.stack([table[user] for user in users])

        return cls(name, probabilities)

    @classmethod
    def parse(cls, text: str, *, control: str | None = None) -> TargetPolicy:
        """A target as it is written on a command line."""
        if text == "control":
            if control is None:
                raise InputError("target 'control' needs the name of the control arm; give it with --control NAME")
            return cls.always(control, name="control")
        kind, _, name = text.partition("=")
        if kind in ("arm", "columns") and name:
            return cls.always(name) if kind == "arm" else cls.columns(name)
        if text in ("uniform", "logged"):
            return cls.uniform() if text == "uniform" else cls.logged()
        raise UnknownNameError("target policy", text, NAMED_TARGETS)


def _needed(part: NDArray[Any] | None, message: str) -> NDArray[Any]:
    if part is None:
        raise InputError(message)
    return part


class Estimator(NamedTuple):
    """The parts of a log that an estimator uses."""

    weighs: bool = True  # propensities, with support
    predicts: bool = False  # predictions
    normalises: bool = False  # divides by the mean weight


ESTIMATORS = {
    "dm": Estimator(weighs=False, predicts=True),  # the model's answer, as biased as the model
    "ips": Estimator(),  # unbiased, noisy where weights are large
    "snips": Estimator(normalises=True),  # a weighted mean, so it stays within the range of rewards; bias of order 1/n
    "dr": Estimator(predicts=True),  # unbiased if the propensities are right, whatever the model
    "sndr": Estimator(predicts=True, normalises=True),
}
BIASED = "dm is as wrong as its predictions, and its normal interval leaves that out: compare it with dr"
Terms = tuple[FloatArray | float, FloatArray | float, FloatArray | float]  # base, correction, normaliser: (n,) each


def weights(log: Log, target: FloatArray) -> FloatArray:
    """The target's probability of the arm that was played, over its propensity: (n,)."""
    if target.shape not in ((log.K,), (len(log), log.K)):
        raise ShapeError(f"target must have shape ({log.K},) or ({len(log)}, {log.K}), got {target.shape}")
    return np.asarray(arrays.pick_shared(target, log.action, 1)) / log.propensity


def estimator_terms(names: Sequence[str], log: Log, target: FloatArray, weight: FloatArray | None) -> dict[str, Terms]:
    """The terms of those estimators that this piece allows; weight None: weighting is impossible."""
    q, terms = log.predictions, dict[str, Terms]()
    direct, residual = 0.0, log.reward
    if q is not None and any(ESTIMATORS[name].predicts for name in names):
        direct, residual = np.vecdot(target, q), log.reward - np.asarray(pick(q, log.action))
    for name in names:
        e = ESTIMATORS[name]
        if (weight is None and e.weighs) or (q is None and e.predicts):
            continue
        base, rest = (direct, residual) if e.predicts else (0.0, log.reward)
        w = 0.0 if weight is None or not e.weighs else weight
        terms[name] = base, w * rest, w if e.normalises else 1.0
    return terms


@final
@dataclass
class Sums:
    """Count, means and scatter of one estimator's terms, or of those of two targets whose values are subtracted.

    Pieces are merged by Chan, Golub and LeVeque (1983): deviations are taken from each piece's own mean, so nothing
    cancels.
    """

    count: int = 0
    mean: FloatArray = field(default_factory=lambda: np.zeros(1))  # (c,): three terms for each target
    scatter: FloatArray = field(default_factory=lambda: np.zeros((1, 1)))  # (c, c), sum of products of deviations

    def add(self, n: int, *terms: Terms) -> None:
        """The terms of n decisions: of a target, or of a target and the one that it is compared with."""
        columns = np.stack([np.broadcast_to(column, n) for three in terms for column in three])  # (c, n)
        mean = columns.sum(-1) / max(n, 1)
        off, step, before = columns - mean[:, None], mean - self.mean, self.count
        self.count += n
        share = n / max(self.count, 1)
        # Unlike a product of matrices, einsum starts no threads.
        self.scatter = self.scatter + np.einsum("in,jn->ij", off, off) + outer(step, step) * (before * share)
        self.mean = self.mean + step * share

    def estimate(self) -> tuple[float, float]:
        """mean(base) + mean(correction) / mean(normaliser), less that of the second target, and its standard error.

        The value is NaN without weights; the standard error, by the delta method, is NaN where the terms do not vary,
        so that they say nothing about it.
        """
        if not self.count:
            return np.nan, np.nan
        base, correction, w = self.mean.reshape(-1, 3).T  # (targets,) each
        w, sign = np.where(w == 0, np.nan, w), np.array([1.0, -1.0])[: len(base)]
        value = float(sign @ (base + correction / w))
        slope = (sign * np.stack([np.ones_like(w), 1 / w, -correction / w**2])).T.ravel()  # by the mean of each column
        if self.count < 2 or not np.isfinite(slope).all():
            return value, np.nan
        covariance = self.scatter / (self.count - 1)
        variance, size = float(slope @ covariance @ slope), float(slope**2 @ (covariance.diagonal() + self.mean**2))
        return value, float(np.sqrt(variance / self.count)) if variance > NO_VARIANCE * size else np.nan


@final
@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval; its ends are NaN where it cannot be known."""

    low: float
    high: float
    level: float
    method: str


def unknown_propensity(log: Log) -> str | None:
    """The reason why this log cannot be weighted, or None if every propensity is known."""
    if not np.isnan(log.propensity.sum()):  # a NaN never leaves a sum
        return None
    unknown = np.isnan(log.propensity)
    return (
        f"the propensity is unknown (NaN) for {int(unknown.sum())} of {len(log)} decisions, first in row "
        f"{log.row(int(unknown.argmax()))}: no weighting can undo an unknown choice; log the probability of the arm "
        "played, or use the direct method, which needs predictions only"
    )


def missing_support(log: Log, target: FloatArray) -> str | None:
    """The reason why weighting cannot answer: the target plays an arm where this piece gave it no chance; or None."""
    for part, why in ((log.available, "that arm was not available"), (log.probabilities, "the log gave it no chance")):
        if part is not None:
            without = (np.broadcast_to(target, part.shape) > SUM_TOLERANCE) & ~(part > 0)  # (n, K)
            if without.any():
                row, arm = np.argwhere(without)[0]
                where = f"the target plays {log.arms[arm]!r} in row {log.row(int(row))}"
                return (
                    f"support is missing: {where}, where {why}, and in {without.any(-1).mean():.1%} of these decisions"
                )
    return None


@final
@dataclass
class Overlap:
    """Information of a log about one target, summed over its pieces."""

    arms: tuple[str, ...] = ()
    count: int = 0
    total: float = 0.0  # of the weights
    squares: float = 0.0
    largest: float = 0.0
    logged: FloatArray = field(default_factory=lambda: np.zeros(1))  # (K,), how often each arm was played
    wanted: FloatArray = field(default_factory=lambda: np.zeros(1))  # (K,), how often the target would play it
    by_user: dict[Any, Overlap] = field(default_factory=dict)  # weights alone

    def add(self, log: Log, target: FloatArray, weight: FloatArray, *, by_user: bool = False) -> None:
        """Add one piece of a log."""
        self.arms = log.arms
        self.weigh(weight)
        if by_user and log.user is not None:
            labels, index = np.unique(log.user, return_inverse=True)
            parts = np.split(weight[np.argsort(index, kind="stable")], np.cumsum(np.bincount(index))[:-1])
            for label, own in zip(labels.tolist(), parts, strict=True):
                self.by_user.setdefault(label, Overlap()).weigh(own)
        self.logged = self.logged + np.bincount(log.action, minlength=log.K)
        self.wanted = self.wanted + np.broadcast_to(target, (len(log), log.K)).sum(0)

    def weigh(self, weight: FloatArray) -> None:
        """Add the weights of more decisions: (n,)."""
        self.count += len(weight)
        self.total += float(weight.sum())
        self.squares += float((weight**2).sum())
        self.largest = max(self.largest, float(weight.max(initial=0.0)))

    @property
    def effective(self) -> float:
        """Kish's effective sample size: how many decisions of the target itself would be as informative."""
        return self.total**2 / self.squares if self.squares else 0.0

    @property
    def mean(self) -> float:
        """Near 1 if the propensities are right and support is complete."""
        return self.total / self.count if self.count else np.nan

    def missing(self) -> str | None:
        """The reason why weighting cannot answer: arms that the target plays and the log never did."""
        never = (self.wanted > SUM_TOLERANCE * self.count) & (self.logged == 0)
        if not never.any():
            return None
        names = ", ".join(repr(self.arms[k]) for k in np.flatnonzero(never))
        share = f"{self.wanted[never].sum() / self.wanted.sum():.1%} of decisions"
        only = "only a model (dm) can answer, by extrapolation"
        return f"support is missing: the target plays {names} in {share}, and the log never did; {only}"

    def warnings(self) -> list[str]:
        """Reasons to distrust the estimates."""
        texts, w = [], self
        variance = max(w.squares / w.count - w.mean**2, 0.0) / w.count if w.count > 1 else 0.0
        errors = float((w.mean - 1) / np.sqrt(variance)) if variance > 0 else 0.0
        if abs(errors) > SUSPECT:
            texts.append(
                f"the weights average {w.mean:.3g} instead of 1 ({errors:+.1f} standard errors): propensities are "
                "wrong, or support is missing for some decisions"
            )
        if w.count and w.effective < max(THIN * w.count, FEW):
            unequal = ", because weights are unequal" if w.effective < 0.9 * w.count else ""
            texts.append(
                f"only {w.effective:.0f} of {w.count} decisions count effectively{unequal}: normal intervals are too "
                "narrow; give the reward's range (--reward-range) for one that holds with few decisions too"
            )
        without = [user for user, each in self.by_user.items() if not each.total]
        if without:
            texts.append(f"the target's arms were never logged for {len(without)} users, {without[0]!r} among them")
        return texts

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        sizes = {"decisions": self.count, "effective_sample_size": self.effective}
        sizes |= {"largest_weight": self.largest, "mean_weight": self.mean}
        if not self.arms:  # one user
            return sizes
        return sizes | {
            "logged": dict(zip(self.arms, self.logged.tolist(), strict=True)),
            "wanted": dict(zip(self.arms, self.wanted.tolist(), strict=True)),
            "by_user": {str(user): overlap.as_dict() for user, overlap in self.by_user.items()},
        }


@final
@dataclass(frozen=True, slots=True)
class Estimate:
    """One estimator's answer about one target; where `refused` says why there is none, the numbers are NaN.

    Where all decisions that count are the same, there is a value and no interval: its ends are NaN. With `against` it
    is the difference to another target, decision by decision: what both share does not widen the interval.
    """

    target: str
    estimator: str
    value: float
    standard_error: float
    interval: Interval
    anytime: Interval | None = None
    refused: str | None = None
    against: str | None = None


@final
@dataclass(frozen=True, slots=True)
class Evaluation:
    """Estimates of every target by every estimator, with warnings."""

    decisions: int
    arms: tuple[str, ...]
    mean_reward: float  # of the logging policy
    estimates: list[Estimate]
    overlaps: dict[str, Overlap | None]  # by target; None where propensities are unknown or support is missing
    warnings: dict[str, list[str]]  # by target
    differences: list[Estimate]  # to the target that the plan compares with

    def estimate(self, target: str, estimator: str) -> Estimate:
        """One of the estimates, by names."""
        by_name = {(e.target, e.estimator): e for e in self.estimates}
        if (target, estimator) not in by_name:
            names = ", ".join("/".join(both) for both in by_name)
            raise InputError(f"no estimate {target}/{estimator}; there are {names}")
        return by_name[target, estimator]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; NaN becomes None."""
        plain = asdict(replace(self, overlaps={}))
        plain["overlaps"] = {name: overlap and overlap.as_dict() for name, overlap in self.overlaps.items()}
        return cast(dict[str, Any], _without_nan(plain))


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and np.isnan(value) else value


@final
@dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """Targets, estimators (by name, as in ESTIMATORS) and intervals to compute."""

    targets: Sequence[TargetPolicy]
    estimators: Sequence[str] = ("ips", "snips")
    level: float = 0.95
    reward_range: tuple[float, float] | None = None  # with it, IPS gets an interval that holds at all times
    by_user: bool = False  # overlap for each user
    against: str | None = None  # the target that the others are compared with, decision by decision

    def __post_init__(self) -> None:
        if not self.targets or not self.estimators:
            raise ConfigError("give at least one target and one estimator")
        target_names = [target.name for target in self.targets]
        for kind, names in {"targets": target_names, "estimators": self.estimators}.items():
            if len(set(names)) < len(names):
                raise ConfigError(f"{kind} must have different names, got {', '.join(names)}")
        for name in self.estimators:
            if name not in ESTIMATORS:
                raise UnknownNameError("estimator", name, ESTIMATORS)
        if self.against is not None and self.against not in target_names:
            raise UnknownNameError("policy to compare with", self.against, target_names)
        arrays.share("level", self.level)
        if self.reward_range is not None and not self.reward_range[0] < self.reward_range[1]:
            raise ConfigError("the reward range must be from low to high, got {} to {}".format(*self.reward_range))


class _TargetSums:
    """Sums of one target, by estimator."""

    def __init__(self, level: float) -> None:
        self.overlap = Overlap()
        # Of weighted rewards above the least, and below the most, as shares of the range: (2, 3).
        self.bounds = Lower(alpha=(1 - level) / 2, sums=np.zeros((2, 3)))
        self.values, self.differences = defaultdict[str, Sums](Sums), defaultdict[str, Sums](Sums)
        self.unsupported: str | None = None  # why weighting is refused


class Evaluator:
    """Running sums over the decisions of a log, piece by piece."""

    def __init__(self, plan: EvaluationPlan) -> None:
        self.plan = plan
        self._targets = {target.name: _TargetSums(plan.level) for target in plan.targets}
        self._count, self._rewards, self._arms = 0, 0.0, tuple[str, ...]()
        self._unknown: str | None = None
        self._predicts = True

    def add(self, log: Log) -> None:
        """Add the next decisions."""
        if self._count and log.arms != self._arms:
            raise InputError(f"all pieces of a log must have the same arms, got {log.arms} after {self._arms}")
        self._arms = log.arms
        self._count += len(log)
        self._rewards += float(log.reward.sum())
        self._unknown = self._unknown or unknown_propensity(log)
        self._predicts = self._predicts and log.predictions is not None
        for begin in range(0, len(log), ROWS):
            piece = log.rows(begin, begin + ROWS)
            terms = {t.name: self._add(self._targets[t.name], piece, t.probabilities(piece)) for t in self.plan.targets}
            base = terms.pop(self.plan.against or "", {})
            for target, mine in terms.items():
                for name in mine.keys() & base.keys():
                    self._targets[target].differences[name].add(len(piece), mine[name], base[name])

    def _add(self, sums: _TargetSums, piece: Log, target: FloatArray) -> dict[str, Terms]:
        """Extend one target's sums; returns its terms by estimator."""
        plan, weight = self.plan, weights(piece, target)
        sums.unsupported = sums.unsupported or missing_support(piece, target)
        weighs = not (self._unknown or sums.unsupported)
        if weighs:
            sums.overlap.add(piece, target, weight, by_user=plan.by_user)
        if weighs and plan.reward_range is not None:
            least, most = plan.reward_range
            if len(piece) and (piece.reward.min() < least or piece.reward.max() > most):
                came = f"{float(piece.reward.min())} to {float(piece.reward.max())}"
                raise InputError(f"rewards must be within {least} to {most}, got {came}")
            share = (piece.reward - least) / (most - least)
            sums.bounds = sums.bounds.extend(weight * np.stack([share, 1 - share]))
        terms = estimator_terms(plan.estimators, piece, target, weight if weighs else None)
        for name, three in terms.items():
            sums.values[name].add(len(piece), three)
        return terms

    def result(self) -> Evaluation:
        """Estimates from the decisions so far."""
        if not self._count:
            raise InputError("the log is empty: there is nothing to evaluate")
        mean = self._rewards / self._count
        result = Evaluation(self._count, self._arms, mean, estimates=[], overlaps={}, warnings={}, differences=[])
        for target, sums in self._targets.items():
            blocked = self._unknown or sums.unsupported
            result.overlaps[target] = None if blocked else sums.overlap
            blocked = blocked or sums.overlap.missing()
            mine = [self._estimate(target, name, sums, blocked) for name in self.plan.estimators]
            result.estimates.extend(mine)
            result.warnings[target] = [] if blocked else sums.overlap.warnings()
            if constant := [e.estimator for e in mine if not e.refused and np.isnan(e.standard_error)]:
                same = "the decisions that count are all the same, or only one"
                result.warnings[target].append(f"no interval for {', '.join(constant)}: {same}")
            if any(e.estimator == "dm" and not e.refused for e in mine):
                result.warnings[target].append(BIASED)
        answered = {(e.target, e.estimator) for e in result.estimates if not e.refused}
        for target, sums in self._targets.items():
            for name in self.plan.estimators:
                if name in sums.differences and {(target, name), (self.plan.against, name)} <= answered:
                    difference = self._answer(target, name, sums.differences[name])
                    result.differences.append(replace(difference, against=self.plan.against))
        return result

    def _estimate(self, target: str, name: str, sums: _TargetSums, blocked: str | None) -> Estimate:
        estimator, anytime = ESTIMATORS[name], None
        refused = blocked if estimator.weighs else None
        if refused is None and estimator.predicts and not self._predicts:
            refused = NEEDS_PREDICTIONS
        answer = self._answer(target, name, Sums() if refused else sums.values[name])
        if refused is None and np.isnan(answer.value):
            refused = "no decision of the log counts for this target: its weights are all zero"
        if not refused and name == "ips" and self.plan.reward_range is not None:
            (least, most), (above, below) = self.plan.reward_range, sums.bounds.bound().tolist()
            size = most - least
            anytime = Interval(least + size * above, most - size * below, self.plan.level, "anytime")
        return replace(answer, anytime=anytime, refused=refused)

    def _answer(self, target: str, name: str, sums: Sums) -> Estimate:
        value, error = sums.estimate()
        half = float(ndtri((1 + self.plan.level) / 2)) * error
        return Estimate(target, name, value, error, Interval(value - half, value + half, self.plan.level, "normal"))


def evaluate(pieces: Iterable[Log] | Log, plan: EvaluationPlan) -> Evaluation:
    """Evaluate target policies in one pass over a log, whole or in pieces."""
    if isinstance(pieces, str | Path):
        raise InputError(f"a log must be read first: evaluate(read_log({str(pieces)!r}), plan)")
    evaluator = Evaluator(plan)
    for log in [pieces] if isinstance(pieces, Log) else pieces:
        evaluator.add(log)
    return evaluator.result()
