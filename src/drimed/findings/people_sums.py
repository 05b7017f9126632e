"""How sure sums over decisions are where users have effects of their own.

As with the effect of one arm on one user, variances are uncertain: at each of their nodes (drimed.learning.field.nodes)
a sum is normal, partly by way of what is common and partly by what is a user's own, and it is averaged over the nodes.
Shapes: n decisions, G sums, L episodes, H users, B nodes, M metrics, P columns of theta, q of a user's own effects.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from drimed.errors import InputError
from drimed.learning.field import contrasts
from drimed.learning.field import design as field_design
from drimed.learning.field import own as field_own
from drimed.learning.field.average import mixture
from drimed.learning.field.contrasts import Known
from drimed.learning.field.design import UNKNOWN, Scale
from drimed.learning.field.likelihood import Own, own
from drimed.linear.arrays import FloatArray, IntArray

AT_ONCE = 256  # users whose own effects are worked out at a time


class Spread(NamedTuple):
    """Deviations of sums: (G,) each."""

    now: FloatArray
    before: FloatArray  # any data


class Decided(NamedTuple):
    """Decisions of users: what they weigh, in the units of the metrics."""

    user: IntArray  # (n,), place among all users
    number: IntArray  # (n,), of the user in the model
    episode: IntArray  # (n,), from 0
    own: FloatArray  # (n, M, q), rows on the user's own effects


def spreads(known: Known, decided: Decided, rows: FloatArray, users: FloatArray | None) -> tuple[Spread, Spread | None]:
    """Of the sums to the end of each episode, and of those of each user.

    `rows` (L, M, P) on theta are those of each episode, `users` (H, M, P) those of each user; None: not wanted.
    """
    episodes = _Episodes(known, len(rows))
    mine = None if users is None else Spread(*np.zeros((2, len(users))))
    for h, at, effects in _of_users(known, decided):
        for i, decisions in enumerate(at):
            episodes.add(Own(*(part[i] for part in effects)), decided.episode[decisions], decided.own[decisions])
        if users is not None and mine is not None:
            total = np.stack([decided.own[decisions].sum(0) for decisions in at])  # (h, M, q)
            through = -np.einsum("hmq,hbmqop->hbop", total, effects.gain)
            shift = np.einsum("hmq,hbmq->hb", total, effects.shift)
            noise = np.einsum("hmq,hbmqor,hor->hb", total, effects.noise, total, optimize=True)
            before = (total**2 * _own_prior(known)).sum((-2, -1))
            mine.now[h], mine.before[h] = _mixed(known, users[h], through, shift, noise, before)
    return episodes.spread(rows.cumsum(0)), mine


class _Episodes:
    """Sums to the end of each episode, as users come."""

    def __init__(self, known: Known, episodes: int) -> None:
        B, M, P = _nodes(known)[0].shape
        self.known, self.prior = known, _own_prior(known).ravel()
        self.through = np.zeros((episodes, B, M, P))
        self.shift, self.noise, self.before = np.zeros((episodes, B)), np.zeros((episodes, B)), np.zeros(episodes)

    def add(self, effects: Own, episode: IntArray, rows: FloatArray) -> None:
        """One user's decisions, with its own effects at every node."""
        when, which = np.unique(episode, return_inverse=True)
        Z = np.zeros((len(when), rows[0].size))
        np.add.at(Z, which.reshape(-1), rows.reshape(len(rows), -1))
        B, wide = len(effects.shift), Z.shape[-1]
        through = -np.matmul(Z, effects.gain.reshape(B, wide, -1))  # (B, episodes, M P)
        self.through[when] += np.moveaxis(through, 0, 1).reshape(len(when), *self.through.shape[1:])
        self.shift[when] += Z @ effects.shift.reshape(B, wide).T
        total = Z.cumsum(0)  # what later decisions of the same user add, they add to what came before
        noise = (np.matmul(total, effects.noise.reshape(B, wide, wide)) * total).sum(-1).T
        self.noise[when] += np.diff(noise, axis=0, prepend=0.0)
        self.before[when] += np.diff(total**2 @ self.prior, prepend=0.0)

    def spread(self, rows: FloatArray) -> Spread:
        """With rows on theta up to each episode, (L, M, P)."""
        parts = (self.through, self.shift, self.noise, self.before)
        return _mixed(self.known, rows, *(part.cumsum(0) for part in parts))


def _mixed(
    known: Known, rows: FloatArray, through: FloatArray, shift: FloatArray, noise: FloatArray, before: FloatArray
) -> Spread:
    """Of G sums: their rows on theta, what is the users' own by way of it at each node, and what is besides it."""
    theta, covariance = _nodes(known)
    old, layout = known.structure.common, known.layout
    at = contrasts.places(old, layout)
    prior = np.sqrt((rows**2 * known.prior).sum((-2, -1)) + before)
    if not known.scale.known.all():
        blank = np.where(prior > 0, UNKNOWN, 0.0)
        return Spread(blank, blank)
    size = theta[0].size
    flat = np.moveaxis((rows[:, None][..., at] + through).reshape(len(rows), -1, size), 1, 0)  # (B, G, M P)
    mean = np.matmul(flat, theta.reshape(-1, size, 1))[..., 0].T + shift
    variance = (np.matmul(flat, covariance.reshape(-1, size, size)) * flat).sum(-1).T + noise
    new = np.delete(np.arange(rows.shape[-1]), at)  # what nobody has been seen with follows the prior
    unseen = known.evidence.learned.variance[..., layout.family[new]]  # (B, M, columns)
    variance = variance + np.einsum("gmp,bmp->gb", rows[..., new] ** 2, unseen)
    _, found = mixture(mean[..., None], variance[..., None, None], 1)
    return Spread(np.sqrt(np.maximum(found[..., 0, 0], 0.0)), prior)


def _of_users(known: Known, decided: Decided) -> Iterator[tuple[IntArray, list[IntArray], Own]]:
    """Some users at a time: their places, the decisions of each in their order, and what is their own, (h, B, ...)."""
    structure, learned = known.structure, known.evidence.learned
    order = np.argsort(decided.user, kind="stable")
    users, starts = np.unique(decided.user[order], return_index=True)
    decisions = np.split(order, starts[1:])
    scale = Scale(*(part[None] for part in (known.scale.centre, known.scale.unit, known.scale.known)))
    for first in range(0, len(users), AT_ONCE):
        at = decisions[first : first + AT_ONCE]
        numbers = decided.number[[one[0] for one in at]]
        theirs = field_own.of_clusters(known.evidence.cells, structure.cluster_place, numbers)
        design = field_design.build(theirs, scale, structure.common, structure.own, noise=structure.noise)
        yield users[first : first + AT_ONCE], at, own(design, learned.variance[None], learned.residual[None])


def _nodes(known: Known) -> tuple[FloatArray, FloatArray]:
    """The posterior of theta at each node, without columns for what nobody has been seen with."""
    learned = known.evidence.learned
    if learned.each_theta is None or learned.each_covariance is None:
        raise InputError("users have effects of their own only where the model's clusters are users")
    return learned.each_theta, learned.each_covariance


def _own_prior(known: Known) -> FloatArray:
    """Variances of a user's own effects before any data: (M, q)."""
    return np.asarray(known.evidence.learned.variance.mean(-3)[:, known.structure.own.family])
