"""The tables. A change here needs a migration beside it; a test compares the two."""

from __future__ import annotations

from sqlalchemy import Column, ForeignKey, Index, Integer, LargeBinary, MetaData, String, Table, Text

metadata = MetaData()

trials = Table(
    "drimed_trials",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String(100), nullable=False, unique=True),
    Column("seq", Integer, nullable=False),  # the head of the chain: it betrays a log whose end was cut off,
    Column("hash", String(64), nullable=False),  # and writers of one trial wait for each other on this row
)

events = Table(
    "drimed_events",
    metadata,
    Column("trial", Integer, ForeignKey("drimed_trials.id"), primary_key=True),
    Column("seq", Integer, primary_key=True),
    Column("time", String(40), nullable=False),
    Column("actor", Text, nullable=False),
    Column("kind", String(20), nullable=False),
    Column("decision", Integer),
    Column("user", Text),
    Column("request", Text),
    Column("text", Text, nullable=False),
    Column("hash", String(64), nullable=False),
    Index("drimed_events_by_decision", "trial", "decision"),
    Index("drimed_events_by_request", "trial", "request"),
)

snapshots = Table(
    "drimed_snapshots",
    metadata,
    Column("trial", Integer, ForeignKey("drimed_trials.id"), primary_key=True),
    Column("seq", Integer, nullable=False),
    Column("hash", String(64), nullable=False),
    Column("data", LargeBinary, nullable=False),
)

# Who may use the service (drimed.service.tokens); what is stored of a token is a hash.
tokens = Table(
    "drimed_tokens",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("hash", String(64), nullable=False),
    Column("label", String(100), nullable=False, unique=True),
    Column("role", String(20), nullable=False),
    Column("trial", String(100)),  # NULL: all trials
    Column("created", String(40), nullable=False),
    Column("expires", String(40)),
    Column("revoked", String(40)),
)

# Answers to writes that carried an Idempotency-Key (drimed.service.retries), written together with what they did.
requests = Table(
    "drimed_requests",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("actor", String(100), nullable=False),
    Column("key", String(255), nullable=False),
    Column("time", String(40), nullable=False),
    Column("fingerprint", String(64), nullable=False),
    Column("status", Integer, nullable=False),
    Column("answer", LargeBinary, nullable=False),
    Index("drimed_requests_by_key", "actor", "key", unique=True),
    Index("drimed_requests_by_time", "time"),
)
