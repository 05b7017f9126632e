"""Creating a trial, opening it and looking at it."""

from __future__ import annotations

from typing import Any

import pytest

from drimed.errors import ConflictError, InputError, UnknownNameError
from drimed.trial.spec import TrialSpec
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial
from drimed.trial.verify import verify
from tests.trial.playing import spec_of


def test_a_trial_is_created_once_and_opened_by_its_name() -> None:
    store = MemoryStore()
    trial = Trial.create(TrialSpec.read(spec_of()), store, actor="Ann")
    with pytest.raises(ConflictError, match="there is a trial 't' already"):
        Trial.create(spec_of(), store)
    with pytest.raises(UnknownNameError, match="unknown trial 'tt'; did you mean 't'"):
        Trial.open("tt", store)
    assert [e.actor for e in trial.log()] == ["Ann"]
    assert store.names() == ["t"]


def test_what_is_no_store_is_refused_with_how_to_get_one() -> None:
    store: Any = "trials.db"
    for do in (
        lambda: Trial.create(spec_of(), store),
        lambda: Trial.open("small", store),
        lambda: verify(store, "small"),
    ):
        with pytest.raises(InputError, match=r"expected a store, such as open_store\('trials.db'\) .* got 'trials.db'"):
            do()
