"""Codes that stand for arms: from the trial file, or drawn so that they tell nothing about the arms or the seed."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Sequence

from drimed.records import Fault
from drimed.trial.names import folded, hidden
from drimed.trial.spec import Blinding, TrialSpec

LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"  # without those that are easily mistaken for each other
LENGTH = 4  # about a million codes
AT = ("blinding", "codes")


def codes_of(seed: int, arms: Sequence[str], blinding: Blinding) -> dict[str, str]:
    """The code of each arm, in the order of the arms; one that the file gives no code, or that came later, gets one.

    >>> codes = codes_of(7, ("old", "new"), Blinding())
    >>> sorted(map(len, codes.values()))
    [4, 4]
    >>> codes_of(7, ("old", "new", "third"), Blinding(codes={"old": "A", "new": "B"}))["new"]
    'B'
    """
    given = blinding.codes or {}
    taken = {folded(text) for text in (*arms, *given.values())}
    found = {}
    for arm in arms:
        code = given.get(arm) or next(c for c in _drawn(seed, arm) if folded(c) not in taken)
        taken.add(folded(code))
        found[arm] = code
    return found


def _drawn(seed: int, arm: str) -> Iterator[str]:
    """Codes from the seed, which cannot be found from them, and by which arms are not told apart."""
    attempt = 0
    while True:
        text = f"code of arm {attempt} {arm}"
        digest = hmac.new(seed.to_bytes(8, "big"), text.encode(), hashlib.sha256).digest()
        yield "".join(LETTERS[byte % len(LETTERS)] for byte in digest[:LENGTH])
        attempt += 1


def code_faults(spec: TrialSpec) -> Iterator[Fault]:
    """What is wrong with the codes of a trial that is about to be created."""
    given = {} if spec.blinding is None else spec.blinding.codes or {}
    for arm in given:
        if arm not in spec.arms:
            yield Fault((*AT, arm), f"is no arm of this trial; its arms are {', '.join(spec.arms)}")
    if given and (left := [arm for arm in spec.arms if arm not in given]):
        yield Fault(AT, f"gives no code to {', '.join(left)}: give every arm one, or leave all out to have them drawn")
    names, seen = {folded(arm) for arm in spec.arms}, dict[str, str]()
    for arm, code in given.items():
        if (character := hidden(code)) is not None:
            yield Fault((*AT, arm), f"has a character that cannot be seen or acts on others ({character})")
        if folded(code) in names:
            yield Fault((*AT, arm), f"{code!r} is the name of an arm: a code must not be taken for one")
        elif (other := seen.setdefault(folded(code), arm)) != arm:
            yield Fault((*AT, arm), f"{code!r} is the code of {other!r} too")
