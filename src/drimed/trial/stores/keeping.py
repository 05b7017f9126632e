"""Which snapshots stay: the newest, and ever fewer of the older ones.

The newest makes opening fast. The others are for proofs that begin where a hash was kept (`drimed.trial.since`):
however old it is, some snapshot is not much older, and of a million events no more than twenty stay.
"""

from __future__ import annotations

from collections.abc import Iterable


def given_up(seqs: Iterable[int], newest: int) -> list[int]:
    """Those that go when one is taken after event `newest`: among those about as old the oldest stays.

    >>> given_up([1000, 2000, 3000, 4000, 5000, 6000, 7000], 8000)
    [2000, 3000, 5000]
    """
    stays: dict[int, int] = {}
    known = sorted(seqs)
    for seq in known:
        if seq < newest:
            stays.setdefault((newest - seq).bit_length(), seq)
    return [seq for seq in known if seq not in stays.values()]
