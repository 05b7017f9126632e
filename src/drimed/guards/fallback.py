"""What to play instead of an uncertified wish, and how the change is explained."""

from __future__ import annotations

import numpy as np

from drimed.errors import InputError
from drimed.guards.guard import CONTROL_ONLY, MIXED, RESTRICTED, UNCHANGED, AskRule, Guarded
from drimed.learning.offer import Offer
from drimed.linear.arrays import BoolArray, FloatArray

ROUND_OFF = 1e-12  # in a probability


def control(offer: Offer) -> FloatArray:
    """pi_0, the lottery that everything is measured against: all of its arms must be available."""
    if offer.available is not None and (~offer.available & (offer.control > 0)).any():
        raise InputError(
            "the control plays an arm that is not available, so there is nothing to fall back on; make the arm "
            "available, or give this offer another control"
        )
    return offer.control


def safe_choice(ok: BoolArray, offer: Offer, ask: AskRule) -> FloatArray:
    """The rule asked again on the certified arms; the control, or its lottery, where there are none."""
    some = ok.any(-1, keepdims=True)
    if some.all():
        return ask(ok, None)
    if not some.any():
        return np.broadcast_to(control(offer), ok.shape)
    # A row without certified arms is asked on all of them: its answer is not used.
    anything = np.ones(ok.shape, bool) if offer.available is None else np.broadcast_to(offer.available, ok.shape)
    again = ask(np.where(some, ok, anything), None)
    return np.where(some, again, control(offer))


def only_safe(ok: BoolArray, offer: Offer, ask: AskRule) -> Guarded:
    """The rule on the certified arms alone, explained; it is the rule's own wish where these are all there are."""
    all_ok = ok.all(-1) if offer.available is None else (ok | ~offer.available).all(-1)
    return explained(safe_choice(ok, offer, ask), np.where(all_ok, 1.0, 0.0), ok, offer)


def explained(p: FloatArray, share: FloatArray, ok: BoolArray, offer: Offer) -> Guarded:
    """The distribution with its reason: how much of the wish is left, and on what."""
    # Of a control that is a lottery some arms may be certified: what is played then is not the control.
    as_control = (np.abs(p - offer.control) <= ROUND_OFF).all(-1) & ~(ok & (offer.control == 0)).any(-1)
    replaced = np.where(as_control, CONTROL_ONLY, RESTRICTED)
    reason = np.where(share >= 1, UNCHANGED, np.where(share > 0, MIXED, replaced))
    return Guarded(p, reason, share, ok.sum(-1))
