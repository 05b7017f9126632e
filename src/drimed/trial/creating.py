"""The transaction that creates a trial: its first event holds the checked file and the seed."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from drimed.trial import events as kinds
from drimed.trial.events import Draft, chain
from drimed.trial.fold import at_start
from drimed.trial.possible import check_start
from drimed.trial.spec import TrialSpec
from drimed.trial.stores.store import Store
from drimed.trial.transaction import Transaction

Rehearsed = dict[str, Any]  # hash, scenario, seasons and trials of a rehearsal, share of control, power


@contextmanager
def creating(
    spec: TrialSpec | Mapping[str, Any],
    store: Store,
    *,
    actor: str,
    clock: Callable[[], str],
    rehearsal: Rehearsed | None = None,
) -> Iterator[tuple[str, Transaction]]:
    """The name of the new trial, inside its first transaction; it exists when the block ends."""
    checked = TrialSpec.read(spec.plain() if isinstance(spec, TrialSpec) else spec)
    seed = checked.seed if checked.seed is not None else secrets.randbits(62)
    seen = {} if rehearsal is None else {"rehearsal": rehearsal}
    draft = Draft(kinds.CREATED, kinds.beginning(checked.plain(), seed) | seen)
    with store.create(checked.name) as ledger:
        time = clock()
        (created,) = chain([draft], seq=ledger.seq, hash=ledger.hash, time=time, actor=actor)
        check_start(created)
        ledger.append([created])
        yield checked.name, Transaction(at_start(ledger), ledger, time, actor)
