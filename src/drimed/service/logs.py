"""The log: one JSON object on each line, and one line a second for each kind of error.

Tokens, bodies and query strings are never in it.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

FIELDS = "drimed_fields"  # of a log record: what is logged beside its message
REQUEST = "request"  # the message of the line that every request gets
EVERY = 1.0  # seconds
MOST_KINDS = 1000


class JsonFormatter(logging.Formatter):
    """time, level, logger, message, and whatever fields the record has."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
        }
        line |= getattr(record, FIELDS, {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class Calm(logging.Filter):
    """Lets one line a second pass for each kind of error; the next one says how many were left out before it.

    Errors and warnings are of one kind if they are worded alike, requests that were refused to callers without a token
    if they got the same status. Everything else passes.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._seen: dict[tuple[Any, ...], tuple[float, int]] = {}  # when a line passed, and how many did not since
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        kind = self._kind(record)
        if kind is None:
            return True
        with self._lock:
            now = self._clock()
            when, left_out = self._seen.get(kind, (float("-inf"), 0))
            if now - when < EVERY:
                self._seen[kind] = when, left_out + 1
                return False
            if len(self._seen) >= MOST_KINDS:
                self._seen.clear()
            self._seen[kind] = now, 0
        if left_out:
            setattr(record, FIELDS, getattr(record, FIELDS, {}) | {"left_out": left_out})
        return True

    @staticmethod
    def _kind(record: logging.LogRecord) -> tuple[Any, ...] | None:
        fields = getattr(record, FIELDS, {})
        if record.msg == REQUEST:
            refused = fields.get("actor") is None and 400 <= fields.get("status", 0) < 500
            return (REQUEST, fields["status"]) if refused else None
        if record.levelno < logging.WARNING:
            return None
        raised = record.exc_info[0] if record.exc_info else None
        return record.name, record.levelno, str(record.msg)[:200], raised


def configuration(level: str) -> dict[str, Any]:
    """For logging.config.dictConfig, and for uvicorn's processes."""
    handler = {
        "class": "logging.StreamHandler",
        "formatter": "json",
        "filters": ["calm"],
        "stream": "ext://sys.stderr",
    }
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"json": {"()": "drimed.service.logs.JsonFormatter"}},
        "filters": {"calm": {"()": "drimed.service.logs.Calm"}},
        "handlers": {"stderr": handler},
        "root": {"handlers": ["stderr"], "level": "WARNING"},
        "loggers": {
            "drimed": {"level": level.upper()},
            "uvicorn": {"level": level.upper()},
            "uvicorn.access": {"level": "CRITICAL"},  # drimed logs requests itself, without their query
        },
    }
