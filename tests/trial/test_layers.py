"""A dictionary in layers is a dictionary of which every version stays as it was."""

from __future__ import annotations

from math import log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drimed.trial.store import Layers

KEYS = range(20)
ITEMS = st.lists(st.tuples(st.sampled_from(KEYS), st.integers()), max_size=8)


@given(ITEMS, st.lists(st.tuples(st.integers(0), ITEMS), max_size=25))
def test_every_version_is_the_dictionary_it_was(
    first: list[tuple[int, int]], steps: list[tuple[int, list[tuple[int, int]]]]
) -> None:
    """Each step adds to any version that there was before; order, length and lookup are a dictionary's."""
    versions = [(Layers(first), dict(first))]
    for place, items in steps:
        layers, model = versions[place % len(versions)]
        versions.append((layers.with_items(items), model | dict(items)))
    for layers, model in versions:
        assert list(layers.items()) == list(model.items())
        assert (list(layers), list(layers.values())) == (list(model), list(model.values()))
        assert len(layers) == len(model)
        assert layers == model
        assert [layers.get(key) for key in KEYS] == [model.get(key) for key in KEYS]
        assert [key in layers for key in KEYS] == [key in model for key in KEYS]
        assert depth(layers) <= 1 + log2(max(1, len(model)))


def test_what_is_not_there_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="east"):
        Layers({"north": 1}).with_items([("south", 2)])["east"]


def test_the_first_dictionary_is_copied() -> None:
    own = {"north": 1}
    layers = Layers(own)
    own["south"] = 2
    assert dict(layers) == {"north": 1}


def test_a_hundred_thousand_additions_leave_few_layers() -> None:
    """A lookup takes one step for each layer; keys that come again add none."""
    n = 100_000
    layers: Layers[int, int] = Layers()
    deepest, kept = 0, {}
    for i in range(n):
        layers = layers.with_items([(i, i)])
        deepest = max(deepest, depth(layers))
        if i + 1 in (1, 10, 1000, 65_536):
            kept[i + 1] = layers
    assert deepest <= 1 + log2(n)
    assert len(layers) == n
    assert all(layers[i] == i for i in range(0, n, 997))
    for i in range(n):
        layers = layers.with_items([(i % 10, -i)])
    assert depth(layers) <= 1 + log2(n)
    assert (len(layers), layers[3], layers[n - 1]) == (n, -(n - 7), n - 1)
    for length, version in kept.items():
        assert (len(version), version[length - 1], version.get(length)) == (length, length - 1, None)
        assert list(version) == list(range(length))


def depth(layers: Layers[int, int]) -> int:
    return len(layers._layers)
