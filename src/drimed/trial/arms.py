"""The arms of a trial as arrays: their maps Phi(a), their attributes and, where it is known, their noise.

Shapes: K arms there is room for, of which some may be still to come; M metrics, d coefficients, r attributes.
"""

from __future__ import annotations

import numpy as np

from drimed.errors import InputError
from drimed.linear.arrays import FloatArray
from drimed.trial.parts import ArmNoise
from drimed.trial.spec import TrialSpec

DEPARTURE = 0.5  # arms differ from each other by less than levels do from zero: half as much, before any data


def attributes(spec: TrialSpec, room: int, founders: int) -> FloatArray | None:
    """Standardised over the first arms: (K, r); an arm that is still to come is an average one."""
    given = _described(spec)
    if given is None:
        return None
    first = given[:founders]
    spread = first.std(0)
    z = (given - first.mean(0)) / np.where(spread > 0, spread, 1.0)
    return np.concatenate([z, np.zeros((room - len(z), z.shape[1]))])


def maps(spec: TrialSpec, room: int, founders: int) -> FloatArray:
    """Phi(a): (K, M, d)."""
    arms, M = list(spec.arms.values()), len(spec.metrics)
    if spec.kind != "paper":
        return np.eye(room * M).reshape(room, M, room * M)
    if arms[0].map is not None:
        found = np.array([a.map for a in arms])
    elif (given := _described(spec)) is not None:
        # Attributes are measured in units of the first arms' largest, and an intercept is added.
        largest = np.abs(given[:founders]).max(0)
        z = np.concatenate([np.ones((len(arms), 1)), given / np.where(largest > 0, largest, 1.0)], axis=1)
        found = np.kron(np.eye(M)[None], z[:, None, :])  # (K, M, M (1 + attributes))
    else:
        # A level that all arms share, and each arm's departure from it: an arm nobody has tried is expected to do as
        # the others do.
        found = np.zeros((len(arms), M, (1 + room) * M))
        for a in range(len(arms)):
            found[a, :, :M] = np.eye(M)
            found[a, :, (1 + a) * M : (2 + a) * M] = DEPARTURE * np.eye(M)
    return np.concatenate([found, np.zeros((room - len(arms), *found.shape[1:]))])


def covariance(spec: TrialSpec, room: int, sizes: FloatArray) -> FloatArray | None:
    """Of each arm's scaled outcome, where it is known: (K, M, M); an arm that is still to come has unit noise."""
    noise = spec.noise
    if noise.kind == "learned":
        return None
    common = _matrix(spec, noise)
    found = []
    for arm in spec.arms:
        own = _matrix(spec, noise.arms[arm]) if arm in noise.arms else common
        if own is None:
            raise InputError(f"the noise of arm {arm!r} is not known: give noise.sd or noise.covariance for all arms")
        found.append(own / np.outer(sizes, sizes))
    return np.stack(found + [np.eye(len(spec.metrics))] * (room - len(spec.arms)))


def _described(spec: TrialSpec) -> FloatArray | None:
    """The arms' attributes as they were given: (arms, r)."""
    arms = list(spec.arms.values())
    if arms[0].attributes is None:
        return None
    return np.array([[(a.attributes or {})[n] for n in arms[0].attributes] for a in arms])


def _matrix(spec: TrialSpec, noise: ArmNoise) -> FloatArray | None:
    if noise.covariance is not None:
        return np.array(noise.covariance)
    if noise.sd is not None:
        return np.diag([noise.sd[m] ** 2 for m in spec.metrics])
    return None
