"""Stopping rules over HTTP, in the client and on pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from drimed.client import Client
from drimed.errors import ConflictError, InputError, SpecError
from drimed.trial.verify import verify
from tests.service.serving import Running
from tests.trial.test_stopping import MEANS, SPEC, SUPERIOR

STOP: dict[str, Any] = SPEC | {"name": "ends", "stopping": {"rules": {"good": SUPERIOR | {"then": "stop"}}}}


@pytest.fixture
def client(running: Running) -> Iterator[Client]:
    with Client(running.address) as made:
        yield made


def ended(client: Client, name: str = "ends", spec: dict[str, Any] = STOP) -> int:
    """Seasons until a rule stops the trial; how many there were."""
    client.create(spec)
    for season in range(1, 40):
        try:
            given = client.ask(name, episode=season)
        except ConflictError:
            return season - 1
        for d in given:
            value = MEANS[d.arm] + (d.id * 7919 % 97) / 48 - 1
            client.tell(name, d.id, {"yield": value, "cost": 1.0 + (d.id * 104729 % 89) / 89}, confirm=True)
    raise AssertionError("no rule was met")


def test_a_trial_that_its_rule_stops_says_so_everywhere(client: Client, running: Running) -> None:
    seasons = ended(client)
    status = client.status("ends")
    assert (status.status, status.episode, status.rules_met) == ("stopped", seasons, ["good"])
    assert status.halted.startswith("stopping rule 'good' is met")
    page = client.looks("ends", limit=3)
    newest, older = page.items[0], client.looks("ends", limit=1000, before=page.next)
    assert len(page.items) + len(older.items) == seasons
    assert (newest.demands, newest.cause, newest.episode) == ("stopped", "season", seasons)
    (claim,) = newest.claims
    assert claim.met
    assert claim.low is not None
    assert claim.low > 0
    assert not any(c.met for look in older.items for c in look.claims)
    for refused in (lambda: client.ask("ends"), lambda: client.open_episode("ends")):
        with pytest.raises(ConflictError, match="stopping rule 'good' is met"):
            refused()
    assert verify(running.service.store, "ends").looks == seasons
    assert "stopped for good: stopping rule &#39;good&#39; is met" in running.http.get("/trials/ends/manage").text
    assert "is stopped and decides nothing" in running.http.get("/trials/ends/ask").text


def test_a_look_is_taken_or_only_told(client: Client) -> None:
    client.create(SPEC | {"name": "hand", "stopping": {"looks": "by hand", "rules": {"good": SUPERIOR}}})
    client.ask("hand")
    assert client.look("hand", dry_run=True).event == 0
    assert client.looks("hand").items == []
    taken = client.look("hand")
    assert client.looks("hand").items == [taken]
    assert taken.actor
    client.change_rules("hand", {"seasons": 3}, reason="no money")
    assert client.spec("hand")["stopping"] == {"seasons": 3}
    with pytest.raises(InputError, match="reason"):
        client.change_rules("hand", {"seasons": 4}, reason="")
    with pytest.raises(SpecError, match="unknown arm"):
        client.change_rules("hand", {"rules": {"x": {"kind": "harm", "arm": "newest"}}}, reason="x")
