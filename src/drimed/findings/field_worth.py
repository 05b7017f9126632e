"""What decisions were worth against the control, by a model that tells sites, seasons and people apart.

A sum over decisions is one combination of effects: its range is that of drimed.learning.field.ranges with the sum's own
prior and posterior, and for a single decision it is the range of the arm's effect. Which combination it is changes with
every decision. So the range fails with 5 % at each look, given all that was seen by then; at all looks together only
that of a combination does which stays the same. Each decision counts in the context that it was taken in, for the
person that it was taken for, in an average season.
Shapes: n decisions, L episodes, U different offers, K arms, M metrics, P columns of theta, q of a user's own effects.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from drimed.findings.people_sums import Decided, Spread, spreads
from drimed.learning.field.contrasts import NORMAL, Found, Known
from drimed.learning.field.model import Belief, standardised
from drimed.learning.offer import Offer
from drimed.linear.arrays import FloatArray, IntArray
from drimed.trial.gather import Gathered

AT_ONCE = 256  # offers that are looked at at a time
MOST_NUMBERS = 20_000_000  # of a table by user and coefficient: with more, users are not summed one by one


class Summed(NamedTuple):
    """A combination of the arms' rewards, added up: to the end of each episode, or over the decisions of each user."""

    value: FloatArray  # (L,) or (H,)
    low: FloatArray  # at this look
    high: FloatArray


class Worth(NamedTuple):
    """Of every decision, and added up."""

    control: FloatArray  # (n,), the control's expected reward
    mixed: FloatArray  # (n,), of the lottery that the arm was drawn from, minus the control's
    mixed_high: FloatArray  # (n,), at most
    drawn: FloatArray  # (n,), of the arm that was drawn, minus the control's
    total: Summed  # of the arms that were drawn, minus the control's
    by_user: Summed | None  # the same of each user alone, (H,); None: too much to work out


def worth(seen: Gathered, known: Known) -> Worth:
    """Of all decisions so far."""
    n, sums = len(seen.slot), _Sums(seen, known, users=True)
    control, mixed, mixed_high, drawn = (np.zeros(n) for _ in range(4))
    for at, there, offers in _pieces(seen):
        _judge(seen, known, offers, at, there, (control, mixed, mixed_high, drawn))
        sums.add(at, there, offers, np.eye(known.structure.arms)[seen.arm[at]] - offers.control[there])
    return Worth(control, mixed, mixed_high, drawn, *sums.found(drawn))


def summed(seen: Gathered, known: Known, weights: FloatArray) -> Summed:
    """Of each decision's arms with these weights, (n, K), which add up to zero in each decision."""
    value, sums = np.zeros(len(seen.slot)), _Sums(seen, known)
    for at, there, offers in _pieces(seen):
        wanted = np.zeros((len(at), known.structure.arms))
        wanted[:, : weights.shape[-1]] = weights[at]
        value[at] = (wanted * _rewards(known, offers)[0][there]).sum(-1)
        sums.add(at, there, offers, wanted)
    return sums.found(value)[0]


class _Sums:
    """Rows of theta and of users' own effects, added up as decisions come."""

    def __init__(self, seen: Gathered, known: Known, *, users: bool = False) -> None:
        self.seen, self.known = seen, known
        structure = known.structure
        each = structure.metrics, len(known.layout.family)
        H = len(seen.state.users) if users and len(seen.state.users) * math.prod(each) <= MOST_NUMBERS else 0
        self.rows = np.zeros((seen.state.episode.number, *each))
        self.users = np.zeros((H, *each)) if H else None
        self.own = np.zeros((len(seen.slot), structure.metrics, len(structure.own.family)))

    def add(self, at: IntArray, there: IntArray, offers: Offer, wanted: FloatArray) -> None:
        """The arms of decisions `at`, whose offers are number `there`, with weights `wanted` (n, K)."""
        known = self.known
        keys, z = known.asked(offers)
        weight = offers.preference[there] * known.unit if offers.preference is not None else known.unit[None]
        X = np.einsum("nk,nkp->np", wanted, known.rows(keys, z)[there])
        added = weight[:, :, None] * X[:, None, :]
        np.add.at(self.rows, self.seen.episode[at] - 1, added)
        if self.users is not None:
            np.add.at(self.users, self.seen.user[at], added)
        if known.structure.cluster == "user":
            standard = standardised(known.structure, known.scale, z)
            Z = np.einsum("nk,nkq->nq", wanted, known.structure.own.rows(keys, standard)[there])
            self.own[at] = weight[:, :, None] * Z[:, None, :]

    def found(self, value: FloatArray) -> tuple[Summed, Summed | None]:
        """To the end of each episode, and over the decisions of each user, with the value of each decision (n,)."""
        place, user = self.seen.episode - 1, self.seen.user
        by_episode, by_user = self._spreads(place)
        total = _summed(np.bincount(place, value, len(self.rows)).cumsum(), by_episode)
        if self.users is None or by_user is None:
            return total, None
        return total, _summed(np.bincount(user, value, len(self.users)).astype(np.float64), by_user)

    def _spreads(self, place: IntArray) -> tuple[Spread, Spread | None]:
        if self.known.structure.cluster == "user" and len(self.own):
            number = np.array([self.seen.state.profiles[int(s)].person.number for s in self.seen.slot])
            return spreads(self.known, Decided(self.seen.user, number, place, self.own), self.rows, self.users)
        return _spread(self.known, self.rows.cumsum(0)), None if self.users is None else _spread(self.known, self.users)


def _spread(known: Known, rows: FloatArray) -> Spread:
    found = known.of(rows)
    return Spread(found.deviation, found.prior)


def _summed(value: FloatArray, spread: Spread) -> Summed:
    return Summed(value, *Found(value, *spread, NORMAL).at_all_times())


def _pieces(seen: Gathered) -> Iterator[tuple[IntArray, IntArray, Offer]]:
    """Different offers, some at a time: the decisions with these, the number of each one's offer, and the offers."""
    asked = seen.slot[:, None] if seen.context is None else np.column_stack([seen.slot, seen.context])
    _, first, which = np.unique(asked, axis=0, return_index=True, return_inverse=True)
    which = which.reshape(-1)
    order = np.argsort(which, kind="stable")
    ends = np.searchsorted(which[order], np.arange(len(first) + 1))
    for start in range(0, len(first), AT_ONCE):
        stop = min(start + AT_ONCE, len(first))
        at = order[ends[start] : ends[stop]]
        yield at, which[at] - start, _offers(seen, first[start:stop])


def _offers(seen: Gathered, some: IntArray) -> Offer:
    """What was offered in these decisions."""
    profiles = [seen.state.profiles[int(s)] for s in seen.slot[some]]
    contexts = [None if seen.context is None else seen.context[i] for i in some]
    return seen.state.problem.offers(profiles, contexts, [None] * len(some))


def _judge(
    seen: Gathered, known: Known, offers: Offer, at: IntArray, there: IntArray, found: tuple[FloatArray, ...]
) -> None:
    """Fill in the expected rewards of decisions `at`, whose offers are number `there`."""
    control, mixed, mixed_high, drawn = found
    reward, belief, p = _rewards(known, offers)
    C, C0 = (np.einsum("um,ukmln,un->ukl", p, c, p, optimize=True) for c in (belief.covariance, belief.prior))
    control[at] = (offers.control * reward).sum(-1)[there]
    drawn[at] = reward[there, seen.arm[at]] - control[at]
    lottery = np.zeros((len(at), reward.shape[-1]))
    lottery[:, : seen.probabilities.shape[-1]] = seen.probabilities[at]
    w = lottery - offers.control[there]  # (n, K)
    w[np.abs(w).max(-1) < 1e-9] = 0.0  # the control itself, written in decimals
    mixed[at] = (w * reward[there]).sum(-1)
    deviation, prior = (np.sqrt(np.maximum(np.einsum("nk,nkl,nl->n", w, c[there], w), 0.0)) for c in (C, C0))
    mixed_high[at] = Found(mixed[at], deviation, prior, NORMAL).at_all_times()[1]


def _rewards(known: Known, offers: Offer) -> tuple[FloatArray, Belief, FloatArray]:
    """The expected reward of each arm, (U, K), and what it comes from."""
    belief = known.learner.beliefs(known.evidence, offers, together=True)
    p = offers.preference if offers.preference is not None else np.ones((len(offers.control), 1))
    return np.einsum("ukm,um->uk", belief.mean, p), belief, p
