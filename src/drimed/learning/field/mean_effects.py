"""The mean effect of each arm over users, in a batch of trials: what `contrasts.together` says of one.

That has each metric besides the reward, and columns for users whom nobody has seen, some users at a time; one way for
both would change last digits of deviations. A test compares the two (tests/rehearsal/test_live.py).

Shapes: S trials, H users, K arms, M metrics, P columns of theta.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from drimed.learning.field import single, tails
from drimed.learning.field.contrasts import NORMAL, Found
from drimed.learning.field.design import UNKNOWN
from drimed.learning.field.learner import Field
from drimed.learning.field.many import Compared
from drimed.learning.field.model import standardised
from drimed.learning.offer import Offer
from drimed.linear.arrays import FloatArray


def mean_effects(learner: Field, evidence: Any, offers: Offer, weights: FloatArray) -> Compared:
    """On the reward and on what lasts, over users with these weights (H, K): (S, K)."""
    structure, learned = learner.structure(evidence), evidence.learned
    keys, z = learner._reading.asked(offers, max(evidence.season, 0), structure.arms)
    scale = learned.scale
    wide = replace(scale, centre=scale.centre[..., None, :], unit=scale.unit[..., None, :])
    X = structure.common.rows(keys, standardised(structure, wide, z))  # (..., H, K, P)
    control, M = offers.control[0], structure.metrics
    X = X - np.einsum("hk,...hkp->...hp", control, X)[..., None, :]
    unit = scale.unit[..., structure.covariates :]  # (S, M)
    p = np.ones((len(control), M)) if offers.preference is None else offers.preference[0]
    X = np.broadcast_to(X, (len(unit), *X.shape[-3:]))
    rows = np.einsum("hk,hm,sm,shkp->skmp", weights, p, unit, X)
    size = rows.shape[-2] * rows.shape[-1]
    flat = rows.reshape(*rows.shape[:-2], size)
    mean = np.einsum("ski,si->sk", flat, learned.theta.reshape(-1, size))
    variance = np.einsum("ski,sij,skj->sk", flat, learned.covariance.reshape(-1, size, size), flat, optimize=True)
    prior = learned.variance.mean(-3)[..., structure.common.family].reshape(-1, size)
    before = np.sqrt(np.einsum("ski,si->sk", flat**2, prior))
    known = scale.known.reshape(-1, 1) > 0
    blank = np.where(before > 0, UNKNOWN, 0.0)
    deviation = np.where(known, np.sqrt(np.maximum(variance, 0.0)), blank)
    freedom = np.broadcast_to(NORMAL, mean.shape)
    if learner.tails:
        found = tails.of_sums(tails.by_family(structure.common, rows**2), learned.variance, variance)
        freedom = np.where(known, found, np.inf)
    noise = single.noise(learner, evidence, offers)
    alone = single.together(noise, p, control, weights)[..., 0]
    return Compared(Found(mean, deviation, np.where(known, before, blank), freedom), alone)
