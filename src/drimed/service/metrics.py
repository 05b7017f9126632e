"""Numbers for Prometheus. Several processes add theirs up through files in a folder."""

from __future__ import annotations

import os

from prometheus_client import REGISTRY as OWN
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest, multiprocess
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # where several processes meet; prometheus_client reads it when it is imported
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
MEDIA = CONTENT_TYPE_PLAIN_0_0_4

REQUESTS = Counter("drimed_requests", "Requests answered.", ["method", "route", "status"])
LATENCY = Histogram("drimed_request_seconds", "From a request to its answer.", ["method", "route"], buckets=SECONDS)
DECISIONS = Counter("drimed_decisions", "Decisions taken and recorded.")
OUTCOMES = Counter("drimed_outcomes", "Outcomes recorded, amended or marked as missing.")
REPEATED = Counter("drimed_repeated", "Repeated writes, answered again.")


def page() -> bytes:
    """Everything, in Prometheus' text."""
    if FOLDER not in os.environ:
        return generate_latest(OWN)
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry)
