"""Checks of the assumptions: moving effects, residuals, noise, propensities, and the model beside propensities alone.

Where a check shows that ranges and promise rest on something false, `Checks.withdrawn` says so. The model and the
propensities disagree about an effect where their ranges at all times have nothing in common. Each is taken at half the
false-alarm rate, divided among all effects that can be compared; guaranteed ranges hold together as they are. The model
is about an average season and the propensities about the decisions so far: effects that vary may part the two as well.
Shapes: n outcomes, L episodes, M metrics, d features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from drimed.errors import InputError, NumericalError
from drimed.evaluation.confidence_sequences import MeanDrift, mean_drift
from drimed.evaluation.propensity_effects import calibration_p_value
from drimed.evaluation.residual_checks import FEWEST, OUTLIER, Check
from drimed.formatting import amount, counted, listed, short
from drimed.models import linear_regression, noise_estimation
from drimed.models.mixed.effects import FittedModel
from drimed.models.noise_estimation import NoiseModel
from drimed.numerics.arrays import FloatArray, IntArray, computing, pick_shared
from drimed.records import Alarm, Effect
from drimed.reports import effects as estimation
from drimed.trial import estimates, queries
from drimed.trial.dataset import Dataset, load_dataset
from drimed.trial.estimates import ALPHA, PROPENSITIES, REWARD, PropensityLog
from drimed.trial.event_checks import why_unlikely_outcome
from drimed.trial.seasons import calendar
from drimed.trial.state import Spread, TrialState
from drimed.trial.trial import Trial

FEWEST_EPISODES = 3
MOST_NAMED = 8  # arms in one sentence
CHUNK = 2000  # outcomes that are weighed at a time
MOST_UNUSUAL = 3  # values of a metric that may all be mistyped, so that none of them says what is usual
RATE = 0.01  # of false alarms about model and propensities, over all looks, arms and estimation.groups together

FLOORS = "Floors give them where the guard allows it ([floors] control = 0.05, arms = 0.05)."
ADVICE = (
    "where the logged probabilities are true and outcomes are not missing because of what they were, believe the range "
    "that needs no model; look below at the residuals, and at whether effects differ between users or seasons"
)


@dataclass(frozen=True)
class Checks:
    """Results of the checks; None: too few outcomes."""

    mean: MeanDrift | None
    calibration: float | None  # p-value of the logged probabilities
    residual_checks: tuple[Check, ...]  # alarms first
    alarms: list[Alarm]
    withdrawn: str | None = None  # the promise that does not hold, and the reason: a sentence


def check(data: Dataset, model: FittedModel | None) -> Checks:
    """Check everything that can be; None: the model is the paper's."""
    rows = _whitened_rows(data) if data.state.spec.kind == "paper" else None
    mean, propensities = None, None
    residual_checks: tuple[Check, ...] = () if model is None else estimates.check_model(data, model)
    if rows is not None:
        if (L := data.state.episode.number) >= FEWEST_EPISODES:
            gram, moment = np.zeros((L, *[rows.Z.shape[-1]] * 2)), np.zeros((L, rows.Z.shape[-1]))
            np.add.at(gram, data.episode[rows.at] - 1, np.matmul(np.swapaxes(rows.Z, -1, -2), rows.Z))
            np.add.at(moment, data.episode[rows.at] - 1, np.vecmat(rows.w, rows.Z))
            bound = estimation.inference_learner(data.state).norm_bound
            mean = mean_drift(gram, moment, alpha=ALPHA, norm_bound=bound, every=max(1, L // 20))
        design = rows.X / rows.sd[..., None]
        residual_checks = estimates.check_trial_residuals(data, rows.at, rows.y / rows.sd, design=design)
    done = np.flatnonzero(~np.isnan(data.reward) & ~np.isnan(data.propensity))
    if len(done):
        propensities = calibration_p_value(data.arm[done], data.probabilities[done])
    checks = Checks(mean, propensities, residual_checks, [])
    why = estimates.serious_fault(residual_checks)
    if why is None and mean is not None and int(mean.alarm) >= 0:
        why = f"the effects themselves have moved (detected in {calendar(data.state).said(int(mean.alarm) + 1)})"
    broken = "The ranges and the promise to stay near the control do not hold, because the model is wrong"
    return replace(checks, alarms=_alarms(data, checks), withdrawn=None if why is None else f"{broken}: {why}.")


def withdrawn(trial: Trial) -> str | None:
    """The promise of a trial that does not hold, and the reason; None: there is no sign against any."""
    with trial.reading() as (ledger, state):
        data = load_dataset(ledger, state)
    try:
        with computing():
            return check(data, estimates.fitted_model(state) if state.users else None).withdrawn
    except NumericalError as error:
        return f"No range can be given and no promise checked: {error}."


def no_promise(withdrawn: str) -> str:
    """The sentence below the range of one decision, when the promise of its trial is withdrawn."""
    return f"By what is known now the range above is no promise. {withdrawn}"


def describe_checks(checks: Checks, state: TrialState) -> list[tuple[str, str]]:
    """Each check with its result; a mixed model's residuals also show whether effects or noise move."""
    few = "too few outcomes to check this yet."
    model, played, rate = few, few, f"(false-alarm rate {100 * ALPHA:g} %"
    if all(metric.kind != "number" for metric in state.spec.metrics.values()):
        model = "residuals are checked of plain numbers only; compare the effects with and without the model."
    if checks.residual_checks:
        alarms = [c.found for c in checks.residual_checks if c.alarm]
        model = f"{counted(len(checks.residual_checks), 'check')} of the residuals {rate} in all) found "
        model += f"this: {'; '.join(alarms)}." if alarms else "nothing."
        if state.spec.model.discount < 1:
            model += " Trends and arms that change were not looked for: the discount is for these."
    if checks.calibration is not None:
        p = checks.calibration
        played = f"arms were {'' if p >= ALPHA else 'not '}given as often as they say (p = {short(p)})."
    elif not state.counts.decisions:
        played = "there are no decisions yet."
    elif state.counts.complete:
        played = "cannot be checked: they are not known for all decisions."
    results = [("Model", model), ("Logged probabilities", played)]
    if state.spec.kind != "paper":
        return results
    effects = few
    if checks.mean is not None:
        effects = f"no sign that the effects have changed since the trial began {rate})."
        if checks.mean.alarm >= 0:
            effects = f"the effects have changed (noticed in {calendar(state).said(int(checks.mean.alarm) + 1)})."
    return [("Effects", effects), *results]


class _Rows(NamedTuple):
    """Whole outcomes as whitened rows, in the order of decisions."""

    at: IntArray  # (n,), decisions, by their place
    Z: FloatArray  # (n, M, d)
    w: FloatArray  # (n, M)
    X: FloatArray  # (n, M, d), in the unit of the outcomes
    y: FloatArray  # (n, M)
    sd: FloatArray  # (n, M), of the noise


def _whitened_rows(data: Dataset) -> _Rows | None:
    learner = estimation.inference_learner(data.state)
    chosen = np.flatnonzero(estimation.usable(data, learner) & data.observed.all(-1))
    if len(chosen) < FEWEST:
        return None
    model = estimation.fit_now(data)[1] if learner.weighting == "learned" else None
    parts = [_whitened(data, model, chosen[i : i + CHUNK]) for i in range(0, len(chosen), CHUNK)]
    Z, w, X, y, variance = (np.concatenate(part) for part in zip(*parts, strict=True))
    return _Rows(chosen, Z, w, X, y, np.sqrt(variance))


def _whitened(data: Dataset, model: NoiseModel | None, some: IntArray) -> tuple[FloatArray, ...]:
    """Rows with unit noise (Z, w), the same in their own unit (X, y), and their noise variance."""
    offer, action, outcome = estimation.evidence(data, some)
    X, y = linear_regression.whitened_rows("none", "vector", offer, action, outcome)
    if model is not None:
        W = noise_estimation.whitening(model, offer, action)
    elif offer.whitening is None or offer.scale is None:
        raise InputError("known noise comes with every offer")
    else:
        W = pick_shared(offer.whitening, action, 3) / np.sqrt(offer.scale)[..., None, None]
    variance = np.diagonal(np.linalg.inv(np.matmul(np.swapaxes(W, -1, -2), W)), axis1=-2, axis2=-1)
    return np.matmul(W, X), np.matvec(W, y), X, y, variance


def _alarms(data: Dataset, checks: Checks) -> list[Alarm]:
    alarms, odd = queries.alarms(data.state), unusual(data)
    if odd:
        advice = "check whether they were typed and measured correctly, and amend them if not: they widen every range"
        alarms.append(Alarm(f"unusual outcomes were recorded: {listed(odd, MOST_NAMED, '; ')}", None, advice))
    if checks.mean is not None and int(checks.mean.alarm) >= 0:
        advice = "ranges assume that they do not: look at recent seasons alone, and consider a discount"
        alarms.append(Alarm("the effects themselves have moved", int(checks.mean.alarm) + 1, advice))
    found = [c for c in checks.residual_checks if c.alarm and not (odd and c.name == OUTLIER)]
    alarms += [Alarm(c.found, None, c.advice) for c in found]
    if checks.calibration is not None and checks.calibration < ALPHA:
        what = "arms were not given as often as their logged probabilities say"
        advice = "do not trust results from propensities; were decisions left out that were not followed?"
        alarms.append(Alarm(what, None, advice))
    return alarms


def unusual(data: Dataset) -> list[str]:
    """Recorded outcomes that are asked about before they are recorded, by all others; of each metric a few."""
    texts = []
    for m, (name, metric) in enumerate(data.state.spec.metrics.items()):
        at = np.flatnonzero(data.observed[:, m])
        if metric.kind not in ("number", "count") or metric.of is not None or not len(at):
            continue
        y = data.vector[at, m] + np.nan_to_num(data.plot[at, m])
        farthest = np.argsort(-np.abs(y - np.median(y)), kind="stable")
        rest = y[farthest[min(MOST_UNUSUAL, len(y) // 4) :]]
        usual = Spread(len(rest), float(rest.mean()), float(rest.var() * len(rest)))
        for i in farthest[:MOST_UNUSUAL]:
            if (why := why_unlikely_outcome(metric, usual, float(y[i]))) is not None:
                texts.append(f"decision {data.number[at[i]]}: {name} {short(float(y[i]))} {why}")
    return texts


@dataclass(frozen=True)
class Agreement:
    """The model beside the propensities."""

    compared: int
    rate: float  # of false alarms
    disagreements: list[str]  # effects whose ranges have nothing in common
    scarce: list[str]  # arms that can be given and whose effect for all users the propensities do not show yet

    def describe(self) -> str:
        if not self.compared:
            return "cannot be compared: the logged probabilities alone show no effect yet."
        effects, rate = counted(self.compared, "effect"), f"(false-alarm rate {100 * self.rate:g} %)"
        if self.disagreements:
            return f"they disagree about {len(self.disagreements)} of {effects} {rate}; see above."
        return f"no sign that they disagree, in {effects} {rate}."

    @property
    def missing(self) -> str:
        """The arms that nothing is known of without the model, and the remedy."""
        some = f"{listed(self.scarce, MOST_NAMED)} {'was' if len(self.scarce) == 1 else 'were'}"
        return f"{some} given too rarely beside the control for a check without a model. {FLOORS}"

    @property
    def alarms(self) -> list[Alarm]:
        """One for all disagreements: they have one cause."""
        if not self.disagreements:
            return []
        others = len(self.disagreements) - 1
        more = f", and {counted(others, 'more effect')}" if others else ""
        return [Alarm(f"without the model the answer differs: {self.disagreements[0]}{more}", None, ADVICE)]


def agreement(data: Dataset, fit: estimation.Inference, effects: Sequence[Effect]) -> Agreement:
    """Compare the model with the propensities where both have an effect; `effects` are all of them."""
    state, members = data.state, estimation.groups(data.state)
    of = {(x.who, x.arm, x.source): x for x in effects if x.on == REWARD}
    both = [(x, of.get((x.who, x.arm, estimation.MODEL))) for x in of.values() if x.source == PROPENSITIES]
    pairs = [(free, model) for free, model in both if model is not None and not model.is_control]
    alpha = RATE / (2 * len(members) * len(state.problem.arms))
    disagreements = []
    for free, model in pairs:
        by_model = model.ends
        if not _apart(free.ends, by_model):
            continue  # narrower ranges have something in common
        key, some = (free.who, free.arm), {free.who: members[free.who]}
        wide = estimates.model_free_effects(data, some, [free.arm], alpha=alpha)[key].ends
        if isinstance(fit, FittedModel):  # a guaranteed range is for all effects at once already
            by_model = estimates.model_effects(state, some, [free.arm], alpha=alpha)[key].ends
        if _apart(wide, by_model):
            one, other = (f"{short(low)} to {amount(high, state.spec.reward.unit)}" for low, high in (by_model, wide))
            ranges = f"is {one} by the model, and {other} by logged probabilities alone"
            disagreements.append(f"the effect of {free.arm} for {free.who} {ranges}")
    rate = RATE if isinstance(fit, FittedModel) else state.spec.delta + RATE / 2
    log, can = PropensityLog.of(data), np.asarray(estimation.available(state, list(state.users)).any(0))
    scarce = [
        arm
        for k, arm in enumerate(state.problem.arms if len(log.at) else ())
        if can[k] and (estimation.EVERYBODY, arm, PROPENSITIES) not in of and not log.is_control(k)
    ]
    return Agreement(len(pairs), rate, disagreements, scarce)


def _apart(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[1] < other[0] or other[1] < one[0]
