"""What decisions were worth against the control, by a model that tells sites, seasons and people apart.

A sum over decisions is one combination of effects: its range is computed as a whole. Each decision counts in the
context that it was taken in, for the person that it was taken for, in an average season.
Shapes: n decisions, L episodes, U different offers, K arms, M metrics, P columns of theta, q of a user's own effects.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from drimed.learning.field import contrasts
from drimed.learning.field import design as field_design
from drimed.learning.field import own as field_own
from drimed.learning.field.contrasts import NORMAL, Found, Known
from drimed.learning.field.design import Scale
from drimed.learning.field.likelihood import own
from drimed.learning.field.model import Belief, standardised
from drimed.learning.offer import Offer
from drimed.linear.arrays import FloatArray, IntArray
from drimed.trial.gather import Gathered

AT_ONCE = 256  # offers that are looked at at a time
MOST_NUMBERS = 20_000_000  # of a table by user and coefficient: with more, users are not summed one by one


class Summed(NamedTuple):
    """A combination of the arms' rewards, added up: to the end of each episode, or over the decisions of each user."""

    value: FloatArray  # (L,) or (H,)
    low: FloatArray  # at all times
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
    return Worth(control, mixed, mixed_high, drawn, sums.by_episode(drawn), sums.by_user(drawn))


def summed(seen: Gathered, known: Known, weights: FloatArray) -> Summed:
    """Of each decision's arms with these weights, (n, K), which add up to zero in each decision."""
    value, sums = np.zeros(len(seen.slot)), _Sums(seen, known)
    for at, there, offers in _pieces(seen):
        wanted = np.zeros((len(at), known.structure.arms))
        wanted[:, : weights.shape[-1]] = weights[at]
        value[at] = (wanted * _rewards(known, offers)[0][there]).sum(-1)
        sums.add(at, there, offers, wanted)
    return sums.by_episode(value)


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

    def by_episode(self, value: FloatArray) -> Summed:
        """To the end of each episode, with the value of each decision (n,)."""
        place = self.seen.episode - 1
        rows, extra = self._with_own(self.rows, place)
        return self._of(np.bincount(place, value, len(rows)).cumsum(), rows.cumsum(0), extra.cumsum(-1))

    def by_user(self, value: FloatArray) -> Summed | None:
        """Over the decisions of each user."""
        if self.users is None:
            return None
        rows, extra = self._with_own(self.users, self.seen.user)
        return self._of(np.bincount(self.seen.user, value, len(rows)).astype(np.float64), rows, extra)

    def _with_own(self, rows: FloatArray, place: IntArray) -> tuple[FloatArray, FloatArray]:
        """With what users have of their own by way of theta, and the variance of the rest, now and before any data."""
        rows, extra = rows.copy(), np.zeros((2, len(rows)))
        if self.known.structure.cluster == "user" and len(self.own):
            _add_own(self.seen, self.known, self.own, place, rows, extra)
        return rows, extra

    def _of(self, value: FloatArray, rows: FloatArray, extra: FloatArray) -> Summed:
        found = self.known.of(rows)
        deviation, prior = (np.sqrt(d**2 + more) for d, more in zip((found.deviation, found.prior), extra, strict=True))
        return Summed(value, *Found(value, deviation, prior, NORMAL).at_all_times())


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


def _add_own(seen: Gathered, known: Known, Z: FloatArray, place: IntArray, rows: FloatArray, extra: FloatArray) -> None:
    """What users have of their own: by way of theta, and besides it; Z is (n, M, q), `place` the row of each decision.

    With the variances as they are most plausible.
    """
    structure = known.structure
    x = known.evidence.learned.mode
    v, R = structure.parameters.variances(x), structure.parameters.residual(x)
    before = v[:, structure.own.family]  # (M, q)
    places = contrasts.places(structure.common, known.layout)
    number = np.array([seen.state.profiles[int(s)].person.number for s in seen.slot])
    order = np.argsort(number, kind="stable")
    users, starts = np.unique(number[order], return_index=True)
    ends = np.append(starts[1:], len(order))
    for first in range(0, len(users), AT_ONCE):
        some = slice(first, first + AT_ONCE)
        theirs = field_own.of_clusters(known.evidence.cells, structure.cluster_place, users[some])
        scale = _widened(known.scale)
        design = field_design.build(theirs, scale, structure.common, structure.own, noise=structure.noise)
        effects = own(design, v[None, None], R[None, None])
        for h, (start, end) in enumerate(zip(starts[some], ends[some], strict=True)):
            at = order[start:end]  # one user's decisions, in their order
            added = np.zeros((len(at), *rows.shape[1:]))
            added[..., places] = -np.einsum("nmq,mqop->nop", Z[at], effects.gain[h, 0])
            np.add.at(rows, place[at], added)
            total = Z[at].cumsum(0)  # (decisions, M, q)
            flat, noise = total.reshape(len(at), -1), effects.noise[h, 0].reshape(Z[0].size, -1)
            for part, spread in enumerate(((flat @ noise * flat).sum(-1), (total**2 * before).sum((1, 2)))):
                np.add.at(extra[part], place[at], np.diff(spread, prepend=0.0))


def _widened(scale: Scale) -> Scale:
    return Scale(scale.centre[None], scale.unit[None], scale.known[None])
