"""Compiled loops of the mixed model's likelihood; drimed.models.mixed.likelihood states what they compute.

A cell has columns `cols` of theta and `zcols` of its cluster's effects, each with a slot of the moments T; -1 is no
column. Columns that no cell has are left out: of theta altogether, of a cluster's effects in that cluster. The others
are numbered anew, and rows and columns of matrices run over metrics last: M column + m.

A cluster's cross products stand side by side, [S | B | c], with c by the metric whose outcomes it comes from, and so
do those of theta, [A | b]. While S = U'U is factored, B and c become U'^-1 B and U'^-1 c. Factors are computed row by
row, in sums that the compiler vectorises, and a zero of a factor costs nothing: for sizes up to some hundreds a library
call costs more than the work. Matrices are given with the number of rows and columns in use; nothing below the diagonal
of U is read.

Second derivatives follow Louis's identity. With m and C the posterior mean and covariance of all effects in prior
deviations, and D = I - C,

    d^2 log L / d log v_k d log v_j = 1/2 sum over (k, j) of D^2 - m_k' D m_j,   plus the gradient where k = j

over theta and the effects of all clusters. Those of two clusters depend on each other through theta alone: with rows h
of G B, C is G + h V h' within a cluster and h V h' between two. So theta's effects are rows of the unit matrix, sums
run over pairs of rows, and `add_within_cluster` adds what is different within one. Of a family with more rows than
theta has columns, only the sum of h h' counts: as many rows as theta has columns, with that sum, stand for them.
"""

from __future__ import annotations

import numpy as np

from drimed.numerics.arrays import FloatArray, IntArray
from drimed.numerics.compiled import helper, kernel
from drimed.numerics.quadratic_forms import clear

LEAST_PIVOT = 1e-13  # relative to its diagonal: less of a row that depends on those before it is round-off
POSTERIOR, GRADIENT, CURVATURE = 0, 1, 2  # what is wanted; the curvature comes with the gradient
Entries = tuple[IntArray, IntArray]  # of the columns that a cell has: their first rows in a matrix, and their slots


@kernel(
    "void(f8[:,:,:], i8[:], i8[:], i8[:,:], i8[:], i8[:,:], i8[:], i8[:], i8[:], i8[:], i8[:], f8[:,:],"
    " f8[:,:,:], i8, f8[:], f8[:,:], f8[:,:,:,:], f8[:,:], f8[:,:,:], f8[:,:], f8[:,:,:], f8[:,:,:,:])",
    "(n,u,u),(n),(n),(n,e),(e),(n,r),(r),(l),(p),(q),(t),(m,f),(g,m,m),()"
    "->(),(m,p),(m,p,m,p),(m,f),(g,m,m),(m,m),(m,m,f),(m,f,m,f)",
)
def evaluate(  # type: ignore[no-untyped-def]
    T, pattern, group, cols, slot, zcols, zslot, start, family, zfamily, touched_bound, v, R, want,
    value, theta, covariance, grad_v, grad_R, squares, by_unit, second,
):  # fmt: skip
    L, P, q, M, F = start.shape[0] - 1, family.shape[0], zfamily.shape[0], v.shape[0], v.shape[1]
    W, log_R = noise_precisions(R)
    spot, seen = np.full(P, -1, np.int64), np.empty(P, np.int64)  # of each column of theta; the column of each spot
    D = M * number_columns(T, cols, start[0], start[L], spot, seen)
    Qm, nm = M * q, min(M * touched_bound.shape[0], D)  # the most of one cluster
    again = 0 if want == POSTERIOR else 1  # clusters are kept, and looked at again for the gradient
    sums = np.empty((again * (L - 1) + 1, Qm, Qm + nm + M))
    touched, own = np.empty((sums.shape[0], nm), np.int64), np.empty((sums.shape[0], q), np.int64)
    counts = np.zeros((sums.shape[0], 2), np.int64)
    place, zplace = np.full(P, -1, np.int64), np.full(q, -1, np.int64)
    A, taken = np.zeros((D, D + M)), np.empty((nm, nm + M))
    room, zroom = np.empty((2, slot.shape[0]), np.int64), np.empty((2, zslot.shape[0]), np.int64)
    observed, log_det = np.zeros(M), 0.0
    clear(squares, M, M)
    for cluster in range(L):
        at = again * cluster
        S, ours, theirs = sums[at], touched[at], own[at]
        nt = number_columns_in_order(T, cols, start[cluster], start[cluster + 1], place, seen, D // M, ours)
        nz = number_columns(T, zcols, start[cluster], start[cluster + 1], zplace, theirs)
        counts[at, 0], counts[at, 1] = nt, nz
        Q, n = M * nz, M * nt
        clear(S, Q, Q + n + M)
        for i in range(start[cluster], start[cluster + 1]):
            if T[i, 0, 0] > 0.0:
                w = W[group[i], pattern[i]]
                log_det += T[i, 0, 0] * log_R[group[i], pattern[i]]
                add_squares(T[i], w, observed, squares)
                z = entries_of_cell(zcols[i], zslot, zplace, M, zroom)
                add_products(T[i], w, entries_of_cell(cols[i], slot, spot, M, room), A, D)
                add_products(T[i], w, z, S, Q + n)
                add_cross_products(T[i], w, z, entries_of_cell(cols[i], slot, place, M, room), S, Q)
        in_prior_units(S, Q, Q + n + M, prior_deviations(v, zfamily, theirs, nz))
        log_det += factorise(S, Q, Q + n + M, 1.0)
        eliminated_products(S, Q, n, taken, squares)
        forget_numbers(place, ours, nt)
        forget_numbers(zplace, theirs, nz)
        columns_to_rows(ours, nt, spot, M)
        for t in range(n):
            row, less = A[ours[t]], taken[t]
            for s in range(t, n):
                row[ours[s]] -= less[s]
            for m in range(M):
                row[D + m] -= less[n + m]

    dev, est, V, log = solve_theta(A, D, v, family, seen, squares)
    log_det += log
    for m in range(M):
        log_det += observed[m] * np.log(2.0 * np.pi)
        for k in range(M):
            log_det += squares[m, k]
    value[0] = -0.5 * log_det
    if want == POSTERIOR:
        write_posterior(est, V, dev, seen, (v, family), theta, covariance)
        return

    clear(grad_v, M, F)
    for g in range(R.shape[0]):
        clear(grad_R[g], M, M)
    for m in range(M):
        clear(by_unit[m], M, F)
        for f in range(F):
            clear(second[m, f], M, F)
    for a in range(D):
        f = family[seen[a // M]]
        grad_v[a % M, f] += 0.5 * (est[a] * est[a] + V[a, a] - 1.0)
        for m in range(M):
            by_unit[m, a % M, f] -= 0.5 * est[a] * A[a, D + m]
    single = M == 1 and R.shape[0] == 1
    X, HV, VH, N = np.empty((nm, nm)), np.empty((Qm, nm)), np.empty((nm, Qm)), np.empty((Qm, Qm))
    C, mean = np.empty((Qm, Qm)), np.empty((L, Qm))
    means, moments, bends = np.empty(nm + Qm), np.empty((nm + Qm, nm + Qm)), np.zeros((M * F, M * F))
    for at in range(L):
        S, ours, theirs, mine = sums[at], touched[at], own[at], mean[at]
        Q, n = M * counts[at, 1], M * counts[at, 0]
        for t in range(n):
            row = ours[t]
            for s in range(n):
                X[t, s] = V[row, ours[s]]
            for a in range(Q):
                S[a, Q + t] *= dev[row]
                for m in range(M):
                    S[a, Q + n + m] -= S[a, Q + t] * A[row, D + m]
        back_substitute(S, Q, S, Q + n, Q + n + M)
        multiply_into(S, Q, Q, n, X, n, HV)
        transpose_into(HV, Q, n, VH)
        multiply_into(S, Q, Q, n, VH, Q, N)
        for a in range(Q):
            N[a, a] += 1.0
        back_substitute(S, Q, N, 0, Q)  # U^-1 (I + N) U'^-1
        transpose_into(N, Q, Q, C)
        back_substitute(S, Q, C, 0, Q)
        for a in range(Q):
            f = zfamily[theirs[a // M]]
            mine[a] = 0.0
            for m in range(M):
                mine[a] += S[a, Q + n + m]
            grad_v[a % M, f] += 0.5 * (mine[a] * mine[a] + C[a, a] - 1.0)
            for m in range(M):
                by_unit[m, a % M, f] -= 0.5 * mine[a] * S[a, Q + n + m]
        if not single:
            back_substitute(S, Q, HV, 0, n)
            for t in range(n // M):
                place[seen[ours[M * t] // M]] = t
            for t in range(Q // M):
                zplace[theirs[t]] = t
            zdev = prior_deviations(v, zfamily, theirs, Q // M)
            effect_moments((est, X, dev, ours[:n]), (mine, C, zdev), HV, moments, means)
            for i in range(start[at], start[at + 1]):
                if T[i, 0, 0] > 0.0:
                    x, z = (
                        entries_of_cell(cols[i], slot, place, M, room),
                        entries_of_cell(zcols[i], zslot, zplace, M, zroom),
                    )
                    add_residual_gradient(T[i], W[group[i], pattern[i]], x, z, n, (means, moments), grad_R[group[i]])
            for t in range(n // M):
                place[seen[ours[M * t] // M]] = -1
            forget_numbers(zplace, theirs, Q // M)
        if want >= CURVATURE:
            back_substitute(S, Q, S, Q, Q + n)
            add_within_cluster(C, gram_of_lower(inverse_factor(S, Q), Q), mine, (theirs, zfamily), Q, M, bends)
    if single:  # scaling outcomes is scaling all variances: what is left of it is the residual's share
        grad_R[0, 0, 0] = 0.5 * (squares[0, 0] - observed[0])
        for f in range(F):
            grad_R[0, 0, 0] -= grad_v[0, f]
        grad_R[0, 0, 0] /= R[0, 0, 0]
    if want >= CURVATURE:
        add_through_theta(V, est, (family, seen), (zfamily, own), (sums, touched, counts, mean), M, bends)
        for a in range(M * F):
            for h in range(M * F):
                second[a // F, a % F, h // F, h % F] = bends[a, h]
            second[a // F, a % F, a // F, a % F] += grad_v[a // F, a % F]


@kernel(
    "void(f8[:,:,:], i8[:], i8[:], i8[:,:], i8[:], i8[:,:], i8[:], i8[:], i8[:], f8[:,:,:], f8[:,:,:,:],"
    " f8[:,:,:], f8[:,:,:,:,:], f8[:,:,:,:,:])",
    "(n,u,u),(n),(n),(n,e),(e),(n,r),(r),(p),(q),(b,m,f),(b,g,m,m)->(b,m,q),(b,m,q,m,p),(b,m,q,m,q)",
)
def cluster_effects(  # type: ignore[no-untyped-def]
    T, pattern, group, cols, slot, zcols, zslot, family, zfamily, v, R, shift, gain, noise
):  # fmt: skip
    """One cluster's effects at each node, given theta: drimed.models.mixed.likelihood.ClusterEffects."""
    P, q, M = family.shape[0], zfamily.shape[0], v.shape[1]
    Q, n, everywhere, all_own = M * q, M * P, np.arange(P), np.arange(q)
    S = np.empty((Q, Q + n + M))
    room, zroom = np.empty((2, slot.shape[0]), np.int64), np.empty((2, zslot.shape[0]), np.int64)
    sums, firsts = merged_cells(T, pattern, group, cols, zcols)
    for b in range(v.shape[0]):
        W, _ = noise_precisions(R[b])
        dev = prior_deviations(v[b], zfamily, all_own, q)
        clear(shift[b], M, q)
        clear(S, Q, Q + n + M)
        for i in firsts:
            w = W[group[i], pattern[i]]
            z = entries_of_cell(zcols[i], zslot, all_own, M, zroom)
            add_products(sums[i], w, z, S, Q + n)
            add_cross_products(sums[i], w, z, entries_of_cell(cols[i], slot, everywhere, M, room), S, Q)
        in_prior_units(S, Q, Q + n + M, dev)
        factorise(S, Q, Q + n + M, 1.0)
        back_substitute(S, Q, S, Q, Q + n + M)
        G = gram_of_lower(inverse_factor(S, Q), Q)
        for a in range(Q):
            m, col = a % M, a // M
            for k in range(M):
                shift[b, m, col] += dev[a] * S[a, Q + n + k]
                for h in range(q):
                    noise[b, m, col, k, h] = dev[a] * dev[M * h + k] * G[a, M * h + k]
                for h in range(P):
                    gain[b, m, col, k, h] = dev[a] * S[a, Q + M * h + k]


# Cross products of cells, and their elimination


@helper
def noise_precisions(R: FloatArray) -> tuple[FloatArray, FloatArray]:
    """R^-1 restricted to what was observed, and log det, for each noise group and pattern: (g, 2^M, M, M), (g, 2^M)."""
    groups, M = R.shape[0], R.shape[1]
    W, log_det = np.zeros((groups, 1 << M, M, M)), np.zeros((groups, 1 << M))
    index, observed = np.zeros(M, np.int64), np.zeros((M, M))
    for pattern in range(1, 1 << M):
        n = 0
        for m in range(M):
            if (pattern >> m) & 1:
                index[n] = m
                n += 1
        for g in range(groups):
            for a in range(n):
                for h in range(n):
                    observed[a, h] = R[g, index[a], index[h]]
            log_det[g, pattern] = factorise(observed, n, n, 0.0)
            inverse = gram_of_lower(inverse_factor(observed, n), n)
            for a in range(n):
                for h in range(n):
                    W[g, pattern, index[a], index[h]] = inverse[a, h]
    return W, log_det


@helper
def number_columns(T: FloatArray, cols: IntArray, first: int, end: int, place: IntArray, columns: IntArray) -> int:
    """Number the columns that cells have, and count them; those come first of whose kind there are most.

    Columns of one kind share no cell: the more of them are eliminated first, the more of the factor is zero.
    """
    E = cols.shape[1]
    sizes = np.zeros(E, np.int64)
    for e in range(E):
        for i in range(first, end):
            col = cols[i, e]
            if col >= 0 and place[col] < 0 and T[i, 0, 0] > 0.0:
                place[col] = 0
                sizes[e] += 1
    n = 0
    for _ in range(E):
        e = 0
        for other in range(1, E):
            if sizes[other] > sizes[e]:
                e = other
        if sizes[e] <= 0:
            break
        sizes[e] = 0
        for i in range(first, end):
            col = cols[i, e]
            if col >= 0 and place[col] == 0 and T[i, 0, 0] > 0.0:
                place[col], columns[n] = -2, col
                n += 1
    for t in range(n):
        place[columns[t]] = t
    return n


@helper
def number_columns_in_order(
    T: FloatArray, cols: IntArray, first: int, end: int, place: IntArray, order: IntArray, n: int, columns: IntArray
) -> int:
    """The same, in a given order: the n columns of `order`."""
    for i in range(first, end):
        if T[i, 0, 0] > 0.0:
            for e in range(cols.shape[1]):
                if cols[i, e] >= 0:
                    place[cols[i, e]] = 0
    count = 0
    for s in range(n):
        if place[order[s]] == 0:
            place[order[s]], columns[count] = count, order[s]
            count += 1
    return count


@helper
def columns_to_rows(columns: IntArray, n: int, spot: IntArray, M: int) -> None:
    """From n columns of theta to their rows of A, M each, in their place."""
    for back in range(n):
        t = n - 1 - back
        row = M * spot[columns[t]]
        for m in range(M):
            columns[M * t + m] = row + m


@helper
def forget_numbers(place: IntArray, columns: IntArray, n: int) -> None:
    """Remove the numbers of columns."""
    for t in range(n):
        place[columns[t]] = -1


@helper
def prior_deviations(v: FloatArray, family: IntArray, columns: IntArray, n: int) -> FloatArray:
    """The prior deviation of each of n columns: (M n)."""
    M = v.shape[0]
    dev = np.empty(M * n)
    for t in range(n):
        for m in range(M):
            dev[M * t + m] = np.sqrt(v[m, family[columns[t]]])
    return dev


@helper
def add_squares(T: FloatArray, W: FloatArray, observed: FloatArray, squares: FloatArray) -> None:
    """Add a cell to the numbers of observations and to their squares."""
    M = W.shape[0]
    first = T.shape[0] - M
    for m in range(M):
        if W[m, m] > 0.0:
            observed[m] += T[0, 0]
        for k in range(M):
            squares[m, k] += W[m, k] * T[first + m, first + k]


@helper
def merged_cells(
    T: FloatArray, pattern: IntArray, group: IntArray, cols: IntArray, zcols: IntArray
) -> tuple[FloatArray, IntArray]:
    """Sums over the cells that touch the same columns, whatever their covariates, and the first cell of each sum."""
    sums, firsts, n = T.copy(), np.empty(T.shape[0], np.int64), 0
    for i in range(T.shape[0]):
        if T[i, 0, 0] > 0.0:
            same = -1
            for j in firsts[:n]:
                alike = pattern[i] == pattern[j] and group[i] == group[j]
                if alike and (cols[i] == cols[j]).all() and (zcols[i] == zcols[j]).all():
                    same = j
                    break
            if same < 0:
                firsts[n] = i
                n += 1
            else:
                sums[same] += T[i]
    return sums, firsts[:n]


@helper
def entries_of_cell(cols: IntArray, slot: IntArray, place: IntArray, M: int, room: IntArray) -> Entries:
    """The columns that a cell has, written to `room` (2, E), where `place` numbers them."""
    rows, slots, n = room[0], room[1], 0
    for e in range(slot.shape[0]):
        if cols[e] >= 0:
            rows[n], slots[n] = M * place[cols[e]], slot[e]
            n += 1
    return rows[:n], slots[:n]


@helper
def add_products(T: FloatArray, W: FloatArray, x: Entries, A: FloatArray, right: int) -> None:
    """Add a cell to the upper triangle of x x', and to x y, whose columns begin at `right`."""
    rows, slots = x
    n, M = len(rows), W.shape[0]
    first = T.shape[0] - M
    for e in range(n):
        here, moment = rows[e], T[slots[e]]
        for m in range(M):
            for k in range(M):
                w, row = W[m, k], A[here + m]
                row[right + k] += w * moment[first + k]
                for h in range(e, n):
                    if rows[h] >= here:
                        row[rows[h] + k] += w * moment[slots[h]]
                    else:
                        A[rows[h] + m, here + k] += w * moment[slots[h]]


@helper
def add_cross_products(T: FloatArray, W: FloatArray, z: Entries, x: Entries, B: FloatArray, first: int) -> None:
    """Add a cell to z x', whose columns begin at `first`."""
    (zrows, zslots), (rows, slots) = z, x
    M = W.shape[0]
    for e in range(len(zrows)):
        moment = T[zslots[e]]
        for m in range(M):
            for k in range(M):
                w, row = W[m, k], B[zrows[e] + m, first + k :]
                for h in range(len(rows)):
                    row[rows[h]] += w * moment[slots[h]]


@helper
def in_prior_units(S: FloatArray, n: int, width: int, dev: FloatArray) -> None:
    """[S | B] in units of the prior deviations of its rows, with their prior added."""
    for a in range(n):
        for h in range(a, n):
            S[a, h] *= dev[a] * dev[h]
        S[a, a] += 1.0
        for h in range(n, width):
            S[a, h] *= dev[a]


@helper
def eliminated_products(S: FloatArray, Q: int, n: int, taken: FloatArray, squares: FloatArray) -> None:
    """The products that elimination takes from [A | b], B'G [B | c], in the upper triangle, and from the squares."""
    M = squares.shape[0]
    for t in range(n):
        for s in range(t, n + M):
            taken[t, s] = 0.0
        for a in range(Q):
            share = S[a, Q + t]
            if share != 0.0:
                add_row(taken[t, t : n + M], share, S[a, Q + t : Q + n + M])
    for a in range(Q):
        for m in range(M):
            for k in range(M):
                squares[m, k] -= S[a, Q + n + m] * S[a, Q + n + k]


@helper
def solve_theta(
    A: FloatArray, D: int, v: FloatArray, family: IntArray, seen: IntArray, squares: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, float]:
    """Theta of [A | b], which is factored, once the clusters are taken out: prior deviations, and in their units mean
    and covariance; log det. What theta explains is taken from the squares, and A's last columns are means by metric.
    """
    M = v.shape[0]
    dev = prior_deviations(v, family, seen, D // M)
    in_prior_units(A, D, D + M, dev)
    log_det = factorise(A, D, D + M, 1.0)
    eliminated_products(A, D, 0, A, squares)
    V = gram_of_lower(inverse_factor(A, D), D)
    back_substitute(A, D, A, D, D + M)
    est = np.zeros(D)
    for a in range(D):
        for m in range(M):
            est[a] += A[a, D + m]
    return dev, est, V, log_det


@helper
def write_posterior(
    est: FloatArray,
    V: FloatArray,
    dev: FloatArray,
    seen: IntArray,
    prior: tuple[FloatArray, IntArray],
    theta: FloatArray,
    covariance: FloatArray,
) -> None:
    """Write down theta and its covariance, in units of outcomes; a column that no cell has is as before any data."""
    v, family = prior
    M, P, D = theta.shape[0], theta.shape[1], len(est)
    clear(theta, M, P)
    for m in range(M):
        for col in range(P):
            clear(covariance[m, col], M, P)
            covariance[m, col, m, col] = v[m, family[col]]
    for a in range(D):
        metric, col = a % M, seen[a // M]
        theta[metric, col] = est[a] * dev[a]
        for h in range(D // M):
            for m in range(M):
                covariance[metric, col, m, seen[h]] = V[a, M * h + m] * dev[a] * dev[M * h + m]


# Derivative with respect to the residual covariance


@helper
def effect_moments(
    common: tuple[FloatArray, FloatArray, FloatArray, IntArray],
    own: tuple[FloatArray, FloatArray, FloatArray],
    HV: FloatArray,
    out: FloatArray,
    mean: FloatArray,
) -> None:
    """E[u] and E[u u'] of a cluster's part of theta and of its own effects, in this order and in units of outcomes.

    Both come as means, covariances and prior deviations; HV is minus the covariance of its effects with theta.
    """
    (est, X, dev, rows), (mine, C, zdev) = common, own
    n, Q = len(rows), len(zdev)
    for t in range(n):
        mean[t] = est[rows[t]] * dev[rows[t]]
        for s in range(n):
            out[t, s] = X[t, s] * dev[rows[t]] * dev[rows[s]]
    for a in range(Q):
        mean[n + a] = mine[a] * zdev[a]
        for s in range(n):
            out[n + a, s] = -HV[a, s] * zdev[a] * dev[rows[s]]
            out[s, n + a] = out[n + a, s]
        for h in range(Q):
            out[n + a, n + h] = C[a, h] * zdev[a] * zdev[h]
    for t in range(n + Q):
        for s in range(n + Q):
            out[t, s] += mean[t] * mean[s]


@helper
def add_residual_gradient(
    T: FloatArray,
    W: FloatArray,
    x: Entries,
    z: Entries,
    n: int,
    moments: tuple[FloatArray, FloatArray],
    gradient: FloatArray,
) -> None:
    """Add a cell: (W E[sum e e'] W - n W) / 2, with the effects' moments."""
    (rows, slots), (zrows, zslots), (mean, second) = x, z, moments
    M, E = W.shape[0], len(rows)
    first, count = T.shape[0] - M, E + len(zrows)
    row, which = np.empty(count, np.int64), np.empty(count, np.int64)
    for e in range(count):
        row[e], which[e] = (rows[e], slots[e]) if e < E else (n + zrows[e - E], zslots[e - E])
    squares, half = np.zeros((M, M)), np.zeros((M, M))
    for m in range(M):
        for k in range(m + 1):
            s = T[first + m, first + k]
            for e in range(count):
                moment, here = T[which[e]], second[row[e] + m]
                s -= mean[row[e] + m] * moment[first + k] + mean[row[e] + k] * moment[first + m]
                for h in range(count):
                    s += moment[which[h]] * here[row[h] + k]
            squares[m, k] = s
            squares[k, m] = s
    for m in range(M):
        for k in range(M):
            for j in range(M):
                half[m, k] += W[m, j] * squares[j, k]
    for m in range(M):
        for k in range(M):
            s = -T[0, 0] * W[m, k]
            for j in range(M):
                s += half[m, j] * W[j, k]
            gradient[m, k] += 0.5 * s


# Second derivatives with respect to log variances


@helper
def add_within_cluster(
    C: FloatArray, G: FloatArray, mean: FloatArray, own: tuple[IntArray, IntArray], Q: int, M: int, H: FloatArray
) -> None:
    """Within one cluster: what is there beside h V h'."""
    columns, family = own
    F = H.shape[0] // M
    unit_of = np.empty(Q, np.int64)
    for a in range(Q):
        unit_of[a] = a % M * F + family[columns[a // M]]
    for a in range(Q):
        here = unit_of[a]
        for h in range(Q):
            there = unit_of[h]
            low, unit = C[a, h] - G[a, h], 1.0 if a == h else 0.0
            of_both = unit - C[a, h]
            H[here, there] += 0.5 * (of_both * of_both - low * low) - mean[a] * mean[h] * (unit - G[a, h])


@helper
def add_through_theta(
    V: FloatArray,
    est: FloatArray,
    theirs: tuple[IntArray, IntArray],
    own: tuple[IntArray, IntArray],
    clusters: tuple[FloatArray, IntArray, IntArray, FloatArray],
    M: int,
    H: FloatArray,
) -> None:
    """Theta, and all clusters by way of theta."""
    (family, seen), (zfamily, columns) = theirs, own
    D, units = V.shape[0], H.shape[0]
    F = units // M
    unit_of = np.empty(D, np.int64)
    pull = np.zeros((units, D))  # of the means of each family's effects
    for a in range(D):
        unit_of[a] = a % M * F + family[seen[a // M]]
        pull[unit_of[a], a] = est[a]
        H[unit_of[a], unit_of[a]] += 0.5 - V[a, a] - est[a] * est[a]
    rows, unit = rows_of_clusters(clusters, (zfamily, columns), D, M, pull)
    n = len(unit)
    VX, XT, squares = np.empty((n, D)), np.empty((D, n)), np.empty(n)
    multiply_into(rows, 0, n, D, V, D, VX)
    transpose_into(rows, n, D, XT)
    half = np.zeros((units, units))  # of pairs in one of their two orders
    for a in range(D):
        sums = half[unit_of[a]]
        for h in range(a):
            sums[unit_of[h]] += V[a, h] * V[a, h]
        sums[unit_of[a]] += 0.5 * V[a, a] * V[a, a]
    for i in range(n):
        sums = half[unit[i]]
        for a in range(D):
            sums[unit_of[a]] += VX[i, a] * VX[i, a]
        for j in range(i, n):
            squares[j] = 0.0
        for a in range(D):
            add_row(squares[i:], VX[i, a], XT[a, i:])
        squares[i] *= np.sqrt(0.5)
        for j in range(i, n):
            sums[unit[j]] += squares[j] * squares[j]
    for u in range(units):
        for w in range(units):
            H[u, w] += 0.5 * (half[u, w] + half[w, u])
    towards, turn = np.empty((units, D)), np.empty((D, units))
    multiply_into(pull, 0, units, D, V, D, towards)
    transpose_into(pull, units, D, turn)
    for u in range(units):
        for a in range(D):
            if towards[u, a] != 0.0:
                add_row(H[u], towards[u, a], turn[a])


@helper
def rows_of_clusters(
    clusters: tuple[FloatArray, IntArray, IntArray, FloatArray],
    own: tuple[IntArray, IntArray],
    D: int,
    M: int,
    pull: FloatArray,
) -> tuple[FloatArray, IntArray]:
    """The rows of all clusters' effects on theta, (n, D), and the family of each; their means are taken from `pull`."""
    (sums, touched, counts, mean), (zfamily, columns) = clusters, own
    units = pull.shape[0]
    F, L = units // M, counts.shape[0]
    size = np.zeros(units, np.int64)
    for at in range(L):
        for a in range(M * counts[at, 1]):
            size[a % M * F + zfamily[columns[at, a // M]]] += 1
    n = 0
    for u in range(units):
        n += min(size[u], D)
    rows, unit, full = np.zeros((n, D)), np.empty(n, np.int64), np.empty(D)
    n = 0
    for u in range(units):
        many = size[u] > D
        end = n + min(size[u], D)
        for i in range(n, end):
            unit[i] = u
        i = n
        for at in range(L):
            Q = M * counts[at, 1]
            for a in range(Q):
                if a % M * F + zfamily[columns[at, a // M]] != u:
                    continue
                for t in range(D):
                    full[t] = 0.0
                for t in range(M * counts[at, 0]):
                    full[touched[at, t]] = sums[at, a, Q + t]
                add_row(pull[u], -mean[at, a], full)
                for row in range(D if many else 0):
                    if full[row] != 0.0:
                        add_row(rows[n + row, row:], full[row], full[row:])
                for t in range(0 if many else D):
                    rows[i, t] = full[t]
                i += 1
        if many:
            factorise_singular(rows[n:end], D)
        n = end
    return rows, unit


# Triangular factors


@helper
def add_row(x: FloatArray, share: float, y: FloatArray) -> None:
    """x += share y."""
    for h in range(x.shape[0]):
        x[h] += share * y[h]


@helper
def factorise(A: FloatArray, n: int, width: int, floor: float) -> float:
    """U in the place of the first n columns of A = U'U, U'^-1 B in that of the further ones, B; log det of A.

    A matrix that is not positive definite has no factor: its log det is NaN. Pivots below `floor` are raised to it:
    those of I + X'X are 1 at least, and less is round-off.
    """
    log_det = 0.0
    for a in range(n):
        for k in range(a):
            share = A[k, a]
            if share != 0.0:
                add_row(A[a, a:width], -share, A[k, a:width])
        if A[a, a] < floor:
            A[a, a] = floor
        pivot = A[a, a]
        if not pivot > 0.0:
            return np.nan
        log_det += np.log(pivot)
        row, by = A[a, a:width], 1.0 / np.sqrt(pivot)
        for h in range(row.shape[0]):
            row[h] *= by
    return log_det


@helper
def factorise_singular(A: FloatArray, n: int) -> None:
    """U in the place of A = U'U, which may be singular; zeros below its diagonal."""
    for a in range(n):
        least = LEAST_PIVOT * A[a, a]
        for k in range(a):
            A[a, k] = 0.0
            share = A[k, a]
            if share != 0.0:
                add_row(A[a, a:n], -share, A[k, a:n])
        row = A[a, a:n]
        by = 1.0 / np.sqrt(row[0]) if row[0] > least else 0.0
        for h in range(row.shape[0]):
            row[h] *= by


@helper
def inverse_factor(U: FloatArray, n: int) -> FloatArray:
    """U'^-1, lower triangular."""
    Y = np.zeros((n, n))
    for a in range(n):
        Y[a, a] = 1.0
        for k in range(a):
            share = U[k, a]
            if share != 0.0:
                add_row(Y[a, : k + 1], -share, Y[k, : k + 1])
        row, by = Y[a, : a + 1], 1.0 / U[a, a]
        for h in range(row.shape[0]):
            row[h] *= by
    return Y


@helper
def gram_of_lower(Y: FloatArray, n: int) -> FloatArray:
    """Y'Y of a lower triangle: the inverse of U'U."""
    V = np.zeros((n, n))
    for a in range(n):
        for k in range(a, n):
            share = Y[k, a]
            if share != 0.0:
                add_row(V[a, : a + 1], share, Y[k, : a + 1])
        for h in range(a):
            V[h, a] = V[a, h]
    return V


@helper
def back_substitute(U: FloatArray, n: int, X: FloatArray, first: int, end: int) -> None:
    """U^-1 X in the place of the columns of X from `first` to `end`."""
    for back in range(n):
        a = n - 1 - back
        for k in range(a + 1, n):
            share = U[a, k]
            if share != 0.0:
                add_row(X[a, first:end], -share, X[k, first:end])
        row, by = X[a, first:end], 1.0 / U[a, a]
        for h in range(row.shape[0]):
            row[h] *= by


@helper
def transpose_into(X: FloatArray, rows: int, columns: int, out: FloatArray) -> None:
    """The transpose of the first rows and columns of X, written to `out`."""
    for a in range(rows):
        for h in range(columns):
            out[h, a] = X[a, h]


@helper
def multiply_into(A: FloatArray, first: int, rows: int, inner: int, B: FloatArray, width: int, out: FloatArray) -> None:
    """A B, of the columns of A from `first` on, written to `out`."""
    for a in range(rows):
        for h in range(width):
            out[a, h] = 0.0
        for k in range(inner):
            share = A[a, first + k]
            if share != 0.0:
                add_row(out[a, :width], share, B[k, :width])
