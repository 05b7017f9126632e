"""Noise that is learned from the outcomes themselves: its level per arm, and how it grows with the context.

    Cov[y] = exp(slope (f - centre)) Sigma_g,    f = log(1 + |context|)

Vector feedback: g is the arm, Sigma_g an M x M covariance that is shrunk towards the pooled variance of each metric.
Reward feedback: g is the pair (user, arm), Sigma_g a variance, shrunk towards its arm's and that towards the pooled
one. Features may then differ every time; with vector feedback the map Phi(a) of an arm must stay what it was.

Kept are sums per (group, bin of f), whose size does not grow with the data. Every refit re-weights all the past with
the present noise model, and replaces V and b; between refits new rows are added with the weights of the last one. An
outcome may come late or be taken out again. One pass per refit starts from the last model, so the model is part of
the state and a snapshot replays; `converge` makes it a function of the sums alone, whatever the order of the data.

Nothing depends on the units of the metrics. Not promised: anything at all times at once, under adaptive sampling, or
while Sigma_g itself drifts. Outcomes whose mean is more than a million times their noise leave no digits for it.
Shapes: leading `...` is any batch; E subgroups (1, or the users), K arms, J bins, m rows of an outcome.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from drimed.errors import InputError, NumericalError
from drimed.learning import moments, noise_model
from drimed.learning.offer import Offer, Shape
from drimed.linear.arrays import BoolArray, FloatArray, IntArray, pick, pick_shared

BINS = 40
BIN_WIDTH = 0.3  # of log(1 + |c|): the grid covers |c| up to exp(11.7) = 120,000; the last bin is open above
EVERY_TIME = 200  # so many observations are refitted one by one,
GROWTH = 1.02  # and then whenever there are 2 % more of them
FEWEST_RECENT = 16  # rows that wait before the sums are touched; more where the sums are large
CONVERGED = 1e-8  # relative change of the model in a pass that counts as none
MOST_PASSES = 2000  # the steps contract geometrically: this many mean that something else is wrong
REFERENCE = 6.0  # squared radius that the inflation is computed for: a level of 0.99 has 5.4
MAP_TOLERANCE = 1e-9  # relative: an arm's map that was written down and read back is the same map


@dataclass(frozen=True, slots=True)
class Noise:
    """Sums, and the model that was fitted to them."""

    n: FloatArray  # (..., E, K, J), observations
    moments: FloatArray  # (..., E, K, J, C), packed sums of u u^T (drimed.learning.moments)
    sf: FloatArray  # (..., J), sums of the context feature
    maps: FloatArray | None  # (..., K, M, d), Phi of the arms seen so far; None for reward feedback
    mapped: BoolArray | None  # (..., K), which arms those are
    whitening: FloatArray  # (..., E, K, m, m), upper triangular: W^T W = Sigma_g^-1
    slope: FloatArray  # (...)
    centre: FloatArray  # (...), mean feature at the last refit
    inflation: FloatArray  # (...), of squared radii, for the price of estimated weights
    recent: FloatArray  # (..., P, 5 + U), rows (subgroup, arm, bin, feature, weight, u) not in the sums yet
    waiting: int  # how many of them are in use
    seen: int  # observations, of each member of the batch
    refitted: int  # how many there were at the last refit

    @property
    def batch(self) -> tuple[int, ...]:
        """The leading axes."""
        return self.slope.shape


@dataclass(frozen=True, slots=True)
class Rows:
    """One observation as the regression sees it, before any weight."""

    subgroup: int | IntArray  # (...), the user, or 0
    arm: IntArray  # (...)
    feature: FloatArray  # (...), of the context
    Z: FloatArray  # (..., m, d)
    y: FloatArray  # (..., m)


def init(shape: Shape, batch: tuple[int, ...], *, feedback: str, guess: float) -> Noise:
    """No data: every group has the guessed variance."""
    fixed = feedback == "vector"
    E, m, U = (1, shape.M, shape.M + 1) if fixed else (shape.H, 1, shape.d + 1)
    K, C = shape.K, U * (U + 1) // 2
    # A new row copies the P rows that wait, and one in P copies the sums: this balances the two.
    P = max(FEWEST_RECENT, math.isqrt(E * K * BINS * (C + 1) // (5 + U)))
    return Noise(
        n=np.zeros((*batch, E, K, BINS)),
        moments=np.zeros((*batch, E, K, BINS, C)),
        sf=np.zeros((*batch, BINS)),
        maps=np.zeros((*batch, K, m, shape.d)) if fixed else None,
        mapped=np.zeros((*batch, K), bool) if fixed else None,
        whitening=np.broadcast_to(np.eye(m) / np.sqrt(guess), (*batch, E, K, m, m)),
        slope=np.zeros(batch),
        centre=np.zeros(batch),
        inflation=np.ones(batch),
        recent=np.zeros((*batch, P, 5 + U)),
        waiting=0,
        seen=0,
        refitted=0,
    )


def rows(noise: Noise, offer: Offer, action: IntArray, Z: FloatArray, y: FloatArray) -> Rows:
    """The evidence of playing `action`, checked: Z (..., m, d) and y (..., m) are on their own scale."""
    feature = context_feature(offer, action.shape)
    if not (np.isfinite(y).all() and np.isfinite(feature).all()):
        raise InputError(
            "outcomes and contexts must be finite: a NaN or infinity could never be taken out of the sums again"
        )
    subgroup = 0 if noise.maps is not None else _checked_user(noise, offer.user)
    return Rows(subgroup, action, feature, Z, np.asarray(y))


def of_user(rows: Rows, h: int) -> Rows:
    """The rows of one user, where those of a whole episode have the users as last batch axis."""
    subgroup = rows.subgroup if isinstance(rows.subgroup, int) else rows.subgroup[..., h]
    return Rows(subgroup, rows.arm[..., h], rows.feature[..., h], rows.Z[..., h, :, :], rows.y[..., h, :])


def add(noise: Noise, rows: Rows, weight: float = 1.0) -> Noise:
    """Count an observation in, which weighs `weight` times one of this episode; a negative weight counts it out."""
    maps, mapped = _with_map(noise, rows)
    recent = noise.recent.copy()
    row = recent[..., noise.waiting, :]
    row[..., 0] = rows.subgroup
    row[..., 1] = rows.arm
    row[..., 2] = np.minimum(rows.feature // BIN_WIDTH, BINS - 1)
    row[..., 3] = rows.feature
    row[..., 4] = weight
    if maps is not None:
        row[..., 5] = 1.0
        row[..., 6:] = rows.y
    else:
        row[..., 5:-1] = rows.Z[..., 0, :]
        row[..., -1] = rows.y[..., 0]
    added = Noise(
        noise.n,
        noise.moments,
        noise.sf,
        maps,
        mapped,
        noise.whitening,
        noise.slope,
        noise.centre,
        noise.inflation,
        recent,
        noise.waiting + 1,
        noise.seen + (1 if weight > 0 else -1),
        noise.refitted,
    )
    return absorb(added) if added.waiting == recent.shape[-2] else added


def remove(noise: Noise, rows: Rows, weight: float = 1.0) -> Noise:
    """Take an observation out again that was added with this weight, or with the one that has since become it."""
    less = absorb(add(noise, rows, -weight))
    if (less.n < 0).any():
        raise InputError("an outcome can be taken out only if it was counted in; this one was not")
    return less


def absorb(noise: Noise) -> Noise:
    """The same evidence with all of it in the sums."""
    if noise.waiting == 0:
        return noise
    n, sums, sf = moments.absorb(noise.n, noise.moments, noise.sf, noise.recent, noise.waiting)
    return replace(noise, n=n, moments=sums, sf=sf, recent=np.zeros_like(noise.recent), waiting=0)


def fade(noise: Noise, share: float) -> Noise:
    """The same evidence, all of which counts only so much."""
    noise = absorb(noise)
    return replace(noise, n=share * noise.n, moments=share * noise.moments, sf=share * noise.sf)


def squares(noise: Noise) -> FloatArray:
    """Of each cell, the sums of squares of what it is made of: (..., E, K, J, U)."""
    U = noise.recent.shape[-1] - 5
    at = [s * U - s * (s - 1) // 2 for s in range(U)]  # the diagonal of a packed upper triangle
    return noise.moments[..., at]


def is_due(noise: Noise) -> bool:
    """Whether the model should be fitted again now."""
    return noise.seen <= EVERY_TIME or noise.seen >= GROWTH * noise.refitted


def refit(
    noise: Noise, d: int, *, penalty: float, guess: float, passes: int = 1, tolerance: float = 0.0
) -> tuple[Noise, FloatArray, FloatArray]:
    """The model after some passes from the present one, and the V (..., d, d) and b (..., d) that follow from it."""
    fixed = noise.maps is not None
    maps = np.zeros((noise.n.shape[-2], 1, d)) if noise.maps is None else noise.maps
    settings = np.empty((*noise.batch, 6))
    settings[..., 0] = np.nan if noise.refitted == 0 else noise.slope
    settings[..., 1:] = penalty, guess, passes, tolerance, fixed
    whitening = noise.whitening.copy()  # replaced in place
    recent = noise.recent[..., : noise.waiting, :]
    V, b, found = noise_model.estimate(noise.n, noise.moments, noise.sf, recent, maps, settings, whitening)
    if tolerance > 0 and np.max(found[..., 4], initial=0) >= passes:
        raise NumericalError(
            f"the noise model did not settle in {passes} passes, the last moved it by {np.max(found[..., 5]):.2g}; "
            "the sums may have lost their digits"
        )
    fitted = replace(
        noise,
        whitening=whitening,
        slope=found[..., 0].copy(),
        centre=found[..., 1].copy(),
        inflation=inflation(found[..., 2], found[..., 3]),
        refitted=noise.seen,
    )
    return fitted, V, b


def converge(noise: Noise, d: int, *, penalty: float, guess: float) -> tuple[Noise, FloatArray, FloatArray]:
    """The model that further passes do not change: it depends on the sums alone, not on the order of the data."""
    return refit(noise, d, penalty=penalty, guess=guess, passes=MOST_PASSES, tolerance=CONVERGED)


def inflation(meier: FloatArray, scatter: FloatArray, squared_radius: float = REFERENCE) -> FloatArray:
    """By how much a squared radius must grow because its weights are estimates: 1 when they are known.

    Meier (1953) prices estimated weights, sum f (1 - f) / nu over the groups, f the share of the evidence that rests
    on a group and nu its degrees of freedom. Satterthwaite's degrees of freedom, the inverse of sum f^2 / nu, widen
    the normal quantile to Student's (Cornish and Fisher's expansion). A heuristic here, not a theorem.

    >>> float(inflation(np.asarray(0.0), np.asarray(0.0)))
    1.0
    """
    z2 = squared_radius
    # Squares are products: the power of a single number may differ from that of an array in the last bit.
    student = 1 + (z2 + 1) * scatter / 4 + (5 * z2**2 + 16 * z2 + 3) * (scatter * scatter) / 96
    return np.asarray((1 + 4 * meier) * (student * student))


def whitened(noise: Noise, rows: Rows) -> tuple[FloatArray, FloatArray]:
    """Z and y divided by the noise as it is estimated now."""
    W = whitening(noise, rows)
    return np.matmul(W, rows.Z), np.matvec(W, rows.y)


def whitening(noise: Noise, rows: Rows) -> FloatArray:
    """W with W Sigma W^T = I, for the noise of each observation as it is estimated now: (..., m, m)."""
    W = _at(noise.whitening, rows.subgroup, rows.arm)
    log_scale = _log_scale(noise.slope, noise.centre, rows.feature)
    return W * np.exp(-0.5 * log_scale)[..., None, None]


def reward_noise(noise: Noise, offer: Offer) -> FloatArray:
    """The estimated standard deviation of each arm's reward: (..., K).

    An offer with more batch axes than the state, such as all users of an episode, has them behind the state's own.
    """
    extra = (None,) * (offer.features.ndim - 2 - noise.slope.ndim)
    slope, centre = noise.slope[(..., *extra)], noise.centre[(..., *extra)]
    batch = np.broadcast_shapes(slope.shape, offer.features.shape[:-2])
    log_scale = _log_scale(slope, centre, context_feature(offer, batch))
    if noise.maps is not None:
        if offer.preference is None:
            raise InputError("learned noise with vector feedback needs the offer's preference")
        whitening = noise.whitening[..., *extra, 0, :, :, :]
        return noise_model.reward_noise(whitening, offer.preference, log_scale)
    user = _checked_user(noise, offer.user)
    if isinstance(user, int):
        mine = noise.whitening[..., *extra, user, :, 0, 0]
    else:
        roots = noise.whitening[..., *extra, :, :, 0, 0]  # (..., E, K)
        mine = pick(np.broadcast_to(roots, (*batch, *roots.shape[-2:])), np.broadcast_to(user, batch))
    return np.exp(0.5 * log_scale)[..., None] / mine


def context_feature(offer: Offer, batch: tuple[int, ...]) -> FloatArray:
    """f of each member: (...). Without a context it is 0, and all data are in one bin."""
    if offer.context is None:
        return np.zeros(batch)
    return np.broadcast_to(noise_model.log_size(offer.context), batch)


def _log_scale(slope: FloatArray, centre: FloatArray, feature: FloatArray) -> FloatArray:
    return np.clip(slope * (feature - centre), -noise_model.LOG_WEIGHT_LIMIT, noise_model.LOG_WEIGHT_LIMIT)


def _at(array: FloatArray, subgroup: int | IntArray, arm: IntArray) -> FloatArray:
    """array[..., subgroup, arm, *rest]: (..., E, K, m, m) -> (..., m, m)."""
    if isinstance(subgroup, int):
        return pick_shared(array[..., subgroup, :, :, :], arm, 3)
    E, K = array.shape[-4:-2]
    cells = array.reshape(*array.shape[:-4], E * K, *array.shape[-2:])
    return pick(cells, subgroup * K + arm)


def _checked_user(noise: Noise, user: int | IntArray) -> int | IntArray:
    E = noise.n.shape[-3]
    if np.ndim(user) == 0:
        user = int(user)
        ok, came = 0 <= user < E, user
    else:
        ok, came = bool(((user >= 0) & (user < E)).all()), int(np.max(user))
    if not ok:
        raise InputError(f"learned noise is kept for {E} users, numbered from 0; got user {came}")
    return user


def _with_map(noise: Noise, rows: Rows) -> tuple[FloatArray | None, BoolArray | None]:
    """The known maps, and this arm's with them."""
    maps, mapped = noise.maps, noise.mapped
    if maps is None or mapped is None:
        return None, None
    known, stored = pick(mapped, rows.arm), pick(maps, rows.arm)
    if not known.all():
        new = (rows.arm[..., None] == np.arange(mapped.shape[-1])) & ~mapped
        maps = np.where(new[..., None, None], rows.Z[..., None, :, :], maps)
        mapped = mapped | new
        stored = np.where(known[..., None, None], stored, rows.Z)
    if not np.array_equal(stored, rows.Z):
        off = np.abs(rows.Z - stored).max((-2, -1)) > MAP_TOLERANCE * np.abs(stored).max((-2, -1))
        if off.any():
            arm = int(np.broadcast_to(rows.arm, off.shape)[off].flat[0])
            raise InputError(
                f"learned noise with vector feedback needs one map Phi(a) per arm; arm {arm} had another one "
                "before. Use feedback 'reward', which lets features change, or weighting 'known'"
            )
    return maps, mapped
