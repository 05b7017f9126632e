"""Certificates from posterior draws, for beliefs that are not normal: a margin holds if it holds in enough draws.

The margin of a lottery p in draw s is <sum_a p_a w_a, theta_s> + rel |<x_0, theta_s>| + abs. Along a mixture of a safe
lottery and a proposed one it is linear in the proposal's share in each draw, so each draw has a largest share that it
allows, and the certified share is a quantile of these. Coordinates with hardly any outcomes are reckoned at the worst
value they can have, where there is one: what is certified then needs nothing of the model.

Shapes: leading `...` is any batch, its last axis the users; K arms, d coordinates, S draws.
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from drimed.errors import ConfigError
from drimed.models.offer import Fit, Offer
from drimed.numerics.arrays import BoolArray, FloatArray
from drimed.policies.guards import base
from drimed.policies.guards.base import AskRule, Constraint, Guarded


def margins(fit: Fit, c: Constraint, w: FloatArray) -> FloatArray:
    """Of choices with features w (..., r, d) against the control, with the tolerance, in each draw: (..., r, S)."""
    draws = np.swapaxes(_draws(fit), -1, -2)  # (..., d, S)
    if fit.unproven is not None and fit.bounds is not None:
        worst = np.where(w >= 0, fit.bounds[0], fit.bounds[1])
        replaced = fit.unproven[..., None, :] & np.isfinite(worst) & (w != 0)
        fixed = np.where(replaced, w * np.where(replaced, worst, 0.0), 0.0).sum(-1, keepdims=True)
        value = np.matmul(np.where(replaced, 0.0, w), draws) + fixed
    else:
        value = np.matmul(w, draws)
    return np.asarray(value + c.relative * np.abs(np.matmul(c.x0[..., None, :], draws)) + c.absolute)


def certified_arms(
    fit: Fit, required: list[Constraint], confidence: float | str, available: BoolArray | None
) -> BoolArray:
    """The available arms whose margin is certified in every constraint: (..., K)."""
    most = allowed_failures(fit, confidence)
    ok = reduce(np.logical_and, ((margins(fit, c, c.w) < 0).sum(-1) <= most for c in required))
    return ok if available is None else ok & available


def allowed_failures(fit: Fit, confidence: float | str) -> int:
    """The number of draws that may break a promise at this level."""
    if isinstance(confidence, str):
        raise ConfigError(
            "confidence 'anytime' needs outcomes that are plain numbers: with yes-or-no outcomes, counts or scores a "
            "promise holds in each decision; give a level such as 0.99 instead"
        )
    return int((1 - confidence) * _draws(fit).shape[-2])


def expected(fit: Fit, offer: Offer, required: list[Constraint], confidence: float | str, ask: AskRule) -> Guarded:
    """p' = rho wish + (1 - rho) safe with the largest certified rho."""
    wish, most = ask(offer.available), allowed_failures(fit, confidence)
    ok = certified_arms(fit, required, confidence, offer.available)
    safe = base.safe_choice(ok, offer, ask)
    shares = []
    for c in required:
        both = np.stack([np.vecmat(safe, c.w), np.vecmat(wish, c.w)], -2)
        kept, wished = np.moveaxis(margins(fit, c, both), -2, 0)  # (..., S) twice
        falls = wished < kept
        limit = np.where(falls, kept / np.where(falls, kept - wished, 1.0), np.inf)
        limit = np.where(kept < 0, 0.0, limit)  # a draw that breaks it anyway
        shares.append(np.clip(np.partition(limit, most, -1)[..., most], 0.0, 1.0))
    return base.mixed(wish, safe, reduce(np.minimum, shares), ok, offer)


def _draws(fit: Fit) -> FloatArray:
    if fit.draws is None:
        raise ConfigError("certificates from draws need a belief that has them")
    return fit.draws
