"""Looks that were taken, and changes of the stopping rules, as everybody reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from drimed.records import Claim, Event, Limit, Look
from drimed.trial import events as kinds
from drimed.trial.stopping import called
from drimed.trial.stores.store import Ledger


def record(body: Mapping[str, Any], event: Event | None = None) -> Look:
    """A look; without its event it was not recorded."""
    claims = [
        Claim(
            rule=said["rule"],
            kind=said["kind"],
            on=said["on"],
            who=called(claim["by"], claim["who"]),
            arm=found["arm"],
            low=found["low"],
            high=found["high"],
            margin=said["margin"],
            distance=claim["distance"],
            met=claim["met"],
            all_arms=claim["arm"] is None,
            seasons=found.get("seasons"),
            withdrawn=said.get("withdrawn"),
        )
        for said in body["rules"]
        for claim in said["claims"]
        for found in claim["ranges"]
    ]
    demands = body["demands"] or {"kind": None, "reason": ""}
    return Look(
        event=0 if event is None else event.seq,
        time="" if event is None else event.time,
        actor="" if event is None else event.actor,
        cause=body["cause"],
        episode=body["episode"],
        decisions=body["decisions"],
        outcomes=body["outcomes"],
        claims=claims,
        limits=[Limit(**limit) for limit in body["limits"]],
        floor_ends=[called(*who.split(":", 1)) for who in body["ends"]],
        demands=demands["kind"],
        reason=demands["reason"],
        hash=body["hash"],
    )


def looks(ledger: Ledger, *, until: int | None = None) -> Iterator[Look]:
    """All of them, in order."""
    return (record(e.body, e) for e in ledger.events(kinds=[kinds.LOOK], until=until))


def rule_changes(ledger: Ledger, *, until: int | None = None) -> list[Event]:
    """When the rules were changed, in order: from what to what, by whom and why."""
    return list(ledger.events(kinds=[kinds.RULES], until=until))
