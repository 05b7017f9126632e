"""What single outcomes would tell of an effect: the deviation with one outcome of each arm that it is made of.

An effect is a contrast of arms: one against another, or against a control that is drawn among several; of users
together it is the mean of theirs. Shapes: H users, K arms, M metrics; "on" the reward and then each metric: 1 + M.
"""

from __future__ import annotations

import numpy as np

from drimed.learning.field.contrasts import on
from drimed.learning.field.learner import Field, FieldEvidence
from drimed.learning.field.model import residual
from drimed.learning.offer import Offer
from drimed.linear.arrays import FloatArray


def of_users(noise: FloatArray, preference: FloatArray, control: FloatArray) -> FloatArray:
    """Of each arm against the user's own control: (..., H, K, 1 + M)."""
    weighs = on(preference)
    variance = np.einsum("hom,...hkmn,hon->...hko", weighs, noise, weighs, optimize=True)
    share = control[..., None]
    return np.sqrt((1 - 2 * share) * variance + (share**2 * variance).sum(-2, keepdims=True))


def together(noise: FloatArray, preference: FloatArray, control: FloatArray, weights: FloatArray) -> FloatArray:
    """The same for users together, who count with weights (H, K): (..., K, 1 + M)."""
    weighs = on(preference)
    contrast = -np.einsum("hk,hom,hj->komj", weights, weighs, control, optimize=True)  # on arm j, in the effect of k
    arms = np.arange(weights.shape[-1])
    contrast[arms, ..., arms] += np.einsum("hk,hom->kom", weights, weighs)
    mean = noise.mean(-4)  # (..., K, M, M)
    return np.sqrt(np.einsum("komj,...jmn,konj->...ko", contrast, mean, contrast, optimize=True))


def noise(learner: Field, evidence: FieldEvidence, offers: Offer) -> FloatArray:
    """The covariance of single outcomes under each arm, in the units of the metrics: (..., H, K, M, M).

    0 where people come: what is said of them needs Dunnett's bound alone (drimed.learning.field.many).
    """
    structure, learned = learner.structure(evidence), evidence.learned
    if learner.kind == "people":
        M = structure.metrics
        return np.broadcast_to(0.0, (*learned.batch, *offers.control.shape[-2:], M, M))
    keys, _ = learner._reading.asked(offers, max(evidence.season, 0), structure.arms)
    unit = learned.scale.unit[..., None, None, structure.covariates :]  # (..., 1, 1, M)
    found = residual(structure, learned, keys) * unit[..., None] * unit[..., None, :]
    lead = np.broadcast_shapes(found.shape[:-2], keys.shape[:-1])
    return np.broadcast_to(found, (*lead, *found.shape[-2:]))
