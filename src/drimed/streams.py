"""Named random streams: every draw belongs to a seed and a purpose, never to the order of execution.

Two kinds. The world (contexts, noise, preferences) reads a generator from front to back. A policy's
draws can also be addressed: the draws of decision t are the same whether t is reached in a sweep of a
million decisions or asked for alone, so a stored live decision can be replayed.
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drimed.errors import InputError

_WORDS_PER_BLOCK = 4  # one Philox counter step yields four 64-bit words
_TO_UNIT = 2.0**-53  # the 53 high bits of a word, as a double in [0, 1)


def generator(seed: int, name: str) -> np.random.Generator:
    """The generator of one purpose.

    >>> bool(generator(1, "noise").random() == generator(1, "noise").random())
    True
    >>> bool(generator(1, "noise").random() == generator(1, "contexts").random())
    False
    """
    return np.random.Generator(np.random.PCG64(_sequence(seed, name)))


def uniforms(seed: int, name: str, start: int, count: int, width: int) -> NDArray[np.float64]:
    """The draws of decisions start, ..., start + count - 1, each `width` uniforms: (count, width).

    >>> whole = uniforms(7, "policy", 0, 10, 3)
    >>> bool((uniforms(7, "policy", 4, 1, 3)[0] == whole[4]).all())
    True
    """
    if min(start, count) < 0 or width < 1:
        raise InputError(
            f"draws need start >= 0, count >= 0 and width >= 1, got start={start}, count={count}, width={width}"
        )
    blocks = -(-width // _WORDS_PER_BLOCK)
    bits = np.random.Philox(key=_key(seed, name), counter=start * blocks)
    words = bits.random_raw(count * blocks * _WORDS_PER_BLOCK)
    high_bits = words.reshape(count, blocks * _WORDS_PER_BLOCK)[:, :width] >> np.uint64(11)
    return high_bits.astype(np.float64) * _TO_UNIT


@lru_cache(maxsize=1000)
def _key(seed: int, name: str) -> NDArray[Any]:
    return _sequence(seed, name).generate_state(2, np.uint64)


def _sequence(seed: int, name: str) -> np.random.SeedSequence:
    if seed < 0:
        raise InputError(f"seed must be a non-negative integer, got {seed}")
    return np.random.SeedSequence(entropy=seed, spawn_key=(zlib.crc32(name.encode()),))
