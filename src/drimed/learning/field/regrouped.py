"""The same likelihood with other clusters, where that is less work.

A fit of sites eliminates the effects of one season after the other, and keeps those of all sites. With many sites it is
less work to eliminate the effects of one site after the other, and to keep those of all seasons. What is a cluster's
own follows from the cells: effects that no other cluster's cells have. The likelihood is the same but for round-off,
so this is for what is shown, not for decisions.
Shapes: N cells, E entries of theta, r of a cluster's effects, L clusters, P columns of theta, q of a cluster's effects.
"""

from __future__ import annotations

import numpy as np

from drimed.learning.field.likelihood import Design
from drimed.linear.arrays import IntArray


def regrouped(design: Design) -> Design:
    """Of a single trial: as it is, or with clusters by one of the entries of theta, whatever is least work."""
    labels = design.cols.T
    others = [by_label(design, label) for label in labels if len(np.unique(label)) > 1]
    return min([design, *others], key=work) if others else design


def work(design: Design) -> float:
    """What the second derivatives of a likelihood take, very roughly: the cubes of the matrices' sizes."""
    clusters = _clusters(design)
    n, Q = (_counts(columns, clusters) for columns in (design.cols, design.zcols))
    families = len(np.unique(design.zfamily))
    P = _counts(design.cols, np.zeros_like(clusters))
    return float(((n + Q) ** 3).sum() + (P**3).sum() + (P * np.minimum(Q.sum(), families * P) ** 2).sum())


def by_label(design: Design, label: IntArray) -> Design:
    """With the cells of the same label (N,) as clusters."""
    order = np.argsort(label, kind="stable")
    _, start, cluster = np.unique(label[order], return_index=True, return_inverse=True)
    P, q, before = len(design.family), len(design.zfamily), _clusters(design)
    own = np.where(design.zcols >= 0, P + q * before[:, None] + design.zcols, -1)
    columns = np.concatenate([design.cols, own], 1)[order]  # (N, E + r), of all effects
    family = np.concatenate([design.family, np.tile(design.zfamily, before.max() + 1)])
    slot = np.concatenate([design.slot, design.zslot])
    inner = np.array([_nested(c, cluster) for c in columns.T])
    cols, kept = _numbered(columns[:, ~inner], np.zeros_like(cluster), family)
    zcols, mine = _numbered(columns[:, inner], cluster, family)
    return design._replace(
        T=design.T[order], pattern=design.pattern[order], group=design.group[order],
        cols=cols, slot=slot[~inner], zcols=zcols, zslot=slot[inner], start=np.append(start, len(order)),
        family=kept, zfamily=mine, touched=np.zeros(_counts(cols, cluster).max(), np.intp),
    )  # fmt: skip


def _clusters(design: Design) -> IntArray:
    """The cluster of each cell: (N,)."""
    return np.repeat(np.arange(len(design.start) - 1), np.diff(design.start))


def _nested(columns: IntArray, cluster: IntArray) -> bool:
    """Whether each column of an entry (N,) occurs in one cluster only."""
    there = columns >= 0
    return len(np.unique(columns[there])) == len(np.unique(_pairs(columns[there], cluster[there])))


def _numbered(columns: IntArray, cluster: IntArray, family: IntArray) -> tuple[IntArray, IntArray]:
    """Columns (N, e) numbered anew in each cluster, entry by entry, and the family of each number."""
    found, families, base = np.full_like(columns, -1), [np.zeros(0, np.intp)], 0
    for e, column in enumerate(columns.T):
        there = np.flatnonzero(column >= 0)
        _, first, which = np.unique(_pairs(column[there], cluster[there]), return_index=True, return_inverse=True)
        theirs = cluster[there[first]]
        number = np.arange(len(first)) - np.searchsorted(theirs, theirs)
        width = int(number.max(initial=-1)) + 1
        found[there, e] = base + number[which]
        families.append(np.repeat(family[column[there[:1]]], width))
        base += width
    return found, np.concatenate(families)


def _counts(columns: IntArray, cluster: IntArray) -> IntArray:
    """How many columns (N, e) each cluster has: (L,)."""
    cell, e = np.nonzero(columns >= 0)
    _, first = np.unique(_pairs(columns[cell, e], cluster[cell]), return_index=True)
    return np.bincount(cluster[cell[first]], minlength=int(cluster.max(initial=0)) + 1)


def _pairs(columns: IntArray, cluster: IntArray) -> IntArray:
    """A number for each pair of a cluster and a column, by the cluster first."""
    return np.asarray(cluster * (columns.max(initial=0) + 1) + columns)
