"""Do the assumptions hold? Moving effects, what the model leaves, wrong noise, wrong propensities.

Where a check shows that the ranges and the promise to users rest on something false, `Checks.withdrawn` says so.

Shapes: L episodes, H users, D context fields, K arms, M metrics.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from drimed.errors import DrimedError, InputError
from drimed.evaluation import calibration
from drimed.evaluation.drift import EpisodeSums, MeanDrift, Monitor
from drimed.evaluation.residuals import Check
from drimed.findings.inference import evidence, inference_learner, inference_noise, usable
from drimed.learning import learned, noise
from drimed.learning.learned import Noise
from drimed.linear.arrays import FloatArray, IntArray, pick_shared
from drimed.linear.ridge import one_step_ahead
from drimed.records import Alarm
from drimed.trial.gather import Gathered, gather
from drimed.trial.left_over import ALPHA, left_by, residual_findings, wrong_because
from drimed.trial.model_ranges import known, offers_now
from drimed.trial.seasons import calendar
from drimed.trial.trial import Trial

FEWEST_EPISODES = 3
CHUNK = 2000  # outcomes that are weighed at a time


@dataclass(frozen=True)
class Checks:
    """What was checked; None where there is too little to say."""

    mean: MeanDrift | None
    residual: calibration.ResidualCheck | None
    calibration: calibration.Calibration | None
    left: tuple[Check, ...]  # what the residuals show, alarms first
    alarms: list[Alarm]
    withdrawn: str | None = None  # which promise does not hold, and why: a sentence


def check(seen: Gathered, left: tuple[Check, ...] | None = None) -> Checks:
    """Check everything that can be; `left` is what `residual_findings` says of a model other than the paper's."""
    rows = _rows(seen) if seen.state.spec.kind == "paper" else None
    mean, residual, propensities = None, None, None
    if rows is not None:
        mean = _mean_drift(seen, rows)
        residual = calibration.residual_check(rows.standardised, rows.arm, len(seen.state.problem.arms))
    with suppress(DrimedError):
        propensities = calibration.calibration_of(seen.logs())
    if left is None:
        left = () if rows is None else _left(seen, rows)
    found = Checks(mean, residual, propensities, left, [])
    return replace(found, alarms=_alarms(seen, found), withdrawn=_withdrawn(seen, found))


def withdrawn(trial: Trial) -> str | None:
    """Which promise of a trial does not hold as it stands, and why; None: there is no sign against any."""
    with trial.reading() as (ledger, state):
        seen = gather(ledger, state)
    model = known(state, offers_now(state)) if state.users else None
    return check(seen, None if model is None else left_by(seen, model)).withdrawn


def no_promise(withdrawn: str) -> str:
    """What stands below the range of one decision, when the promise of its trial is withdrawn."""
    return f"By what is known now the range above is no promise. {withdrawn}"


def _left(seen: Gathered, rows: _Rows) -> tuple[Check, ...]:
    """What the paper's regression leaves. Its prior does not matter: the coefficients are fitted again without it."""
    theta = np.linalg.lstsq(rows.Z.reshape(-1, rows.Z.shape[-1]), rows.w.ravel(), rcond=None)[0]
    design, fitted = rows.X / rows.sd[..., None], np.matvec(rows.X, theta)
    return residual_findings(seen, rows.at, rows.y / rows.sd, design=design, fitted=fitted)


@dataclass(frozen=True)
class _Rows:
    """Whole outcomes as whitened rows, in the order of decisions."""

    Z: FloatArray  # (n, M, d)
    w: FloatArray  # (n, M)
    arm: IntArray  # (n,)
    episode: IntArray  # (n,)
    standardised: FloatArray  # (n, M), one step ahead
    at: IntArray  # (n,), decisions, by their place
    X: FloatArray  # (n, M, d), in the unit of the outcomes
    y: FloatArray  # (n, M)
    sd: FloatArray  # (n, M), of the noise


def _rows(seen: Gathered) -> _Rows | None:
    learner = inference_learner(seen.state)
    chosen = np.flatnonzero(usable(seen, learner) & seen.observed.all(-1))
    if len(chosen) < calibration.FEWEST:
        return None
    noise_model = inference_noise(seen, learner)  # as it is estimated from everything
    parts = [_whitened(seen, noise_model, chosen[i : i + CHUNK]) for i in range(0, len(chosen), CHUNK)]
    Z, w, X, y, variance = (np.concatenate(part) for part in zip(*parts, strict=True))
    mean, leverage = one_step_ahead(learner.ridge_penalty, Z, w, X)
    standardised = (y - mean) / np.sqrt(variance + leverage)
    return _Rows(Z, w, seen.arm[chosen], seen.episode[chosen], standardised, chosen, X, y, np.sqrt(variance))


def _whitened(seen: Gathered, model: Noise | None, some: IntArray) -> tuple[FloatArray, ...]:
    """Of some outcomes: rows with unit noise (Z, w), the same in their own unit (X, y), and their noise variance."""
    offer, action, outcome = evidence(seen, some)
    X, y = noise.rows("none", "vector", offer, action, outcome)
    if model is not None:
        W = learned.whitening(model, learned.rows(model, offer, action, X, y))
    elif offer.whitening is None or offer.scale is None:
        raise InputError("noise that is known comes with every offer")
    else:
        W = pick_shared(offer.whitening, action, 3) / np.sqrt(offer.scale)[..., None, None]
    variance = np.diagonal(np.linalg.inv(np.matmul(np.swapaxes(W, -1, -2), W)), axis1=-2, axis2=-1)
    return np.matmul(W, X), np.matvec(W, y), X, y, variance


def _mean_drift(seen: Gathered, rows: _Rows) -> MeanDrift | None:
    L, d = seen.state.episode.number, rows.Z.shape[-1]
    if L < FEWEST_EPISODES:
        return None
    gram, moment, square = np.zeros((L, d, d)), np.zeros((L, d)), np.zeros(L)
    at = rows.episode - 1
    np.add.at(gram, at, np.matmul(np.swapaxes(rows.Z, -1, -2), rows.Z))
    np.add.at(moment, at, np.vecmat(rows.w, rows.Z))
    np.add.at(square, at, np.vecdot(rows.w, rows.w))
    bound = inference_learner(seen.state).norm_bound
    every = max(1, L // 20)
    return Monitor(alpha=ALPHA, norm_bound=bound, every=every).watch(EpisodeSums(gram, moment, square))


def _withdrawn(seen: Gathered, found: Checks) -> str | None:
    """Why the ranges and the promise to users do not hold, by the clearest sign of it."""
    why = wrong_because(found.left)
    if why is None and found.mean is not None and int(found.mean.alarm) >= 0:
        why = f"the effects themselves have moved (detected in {calendar(seen.state).said(int(found.mean.alarm) + 1)})"
    if why is None:
        return None
    return f"The ranges and the promise to stay near the control do not hold, because the model is wrong: {why}."


def _alarms(seen: Gathered, found: Checks) -> list[Alarm]:
    alarms = []
    if found.mean is not None and int(found.mean.alarm) >= 0:
        advice = "ranges assume that they do not: look at recent seasons alone, and consider a discount"
        alarms.append(Alarm("the effects themselves have moved", int(found.mean.alarm) + 1, advice))
    problem = seen.state.problem
    alarms += [Alarm(c.found, None, c.advice) for c in found.left if c.alarm]
    if found.residual is not None:
        for k, m in np.argwhere(found.residual.wrong_variance):
            ratio = float(found.residual.variance[k, m])
            way, width = ("more", "narrow") if ratio > 1 else ("less", "wide")
            where = f"{problem.metrics[m]} under {problem.arms[k]}"
            what = f"{where} scatters {way} than assumed: {ratio:.2g} times the variance"
            advice = f"ranges are too {width}: correct the noise in the trial file, or have it learned"
            alarms.append(Alarm(what, None, advice))
    if found.calibration is not None and found.calibration.anytime_p < ALPHA:
        what = "arms were not given as often as their logged probabilities say"
        advice = "do not trust results from propensities; were decisions left out that nobody followed?"
        alarms.append(Alarm(what, None, advice))
    return alarms
