"""Taking a look: it is recorded, and so is the pause or the stop that it demands."""

from __future__ import annotations

from drimed.errors import HaltedError, InputError
from drimed.records import Look
from drimed.trial import events as kinds
from drimed.trial.events import Draft
from drimed.trial.looks import look
from drimed.trial.spec import Stopping
from drimed.trial.state import record
from drimed.trial.stopping import BY_HAND, due, fresh
from drimed.trial.transaction import Transaction


def told(tx: Transaction) -> Look:
    """What a look would say now; nothing is recorded."""
    _need_rules(tx)
    return record(look(tx.ledger, tx.state, BY_HAND, tx.memory.gathered)[0])


def take(tx: Transaction, cause: str = BY_HAND) -> Look:
    """Look now, and do what the rules demand. A dry run only tells."""
    _need_rules(tx)
    body, tx.memory.gathered = look(tx.ledger, tx.state, cause, tx.memory.gathered)
    (event,) = tx.append([Draft(kinds.LOOK, body)])
    if body["demands"] is not None:
        tx.append([Draft(body["demands"]["kind"], {"reason": body["demands"]["reason"]})])
    return record(body, None if tx.dry_run else event)


def before_deciding(tx: Transaction, *, opens: bool) -> None:
    """Take the look that is due before decisions, or (`opens`) before an episode; HaltedError if it ends the trial."""
    done: set[str] = set()
    while (cause := due(tx.state, opens=opens)) is not None and cause not in done and not fresh(tx.state, cause):
        done.add(cause)
        found = take(tx, cause)
        if found.demands is not None:
            name = tx.state.spec.name
            raise HaltedError(f"trial {name!r} is {found.demands} and decides nothing: {found.reason}")


def _need_rules(tx: Transaction) -> None:
    if tx.state.spec.stopping in (None, Stopping()):
        raise InputError(
            f"trial {tx.state.spec.name!r} has no stopping rules and no limits; add them under [stopping] in the "
            "trial file, or later with `drimed trial rules`"
        )
