"""Logs, one JSON object on each line. Tokens, bodies and query strings are never in them."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

FIELDS = "drimed_fields"  # of a record: what is to be logged beside its message


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


def configuration(level: str) -> dict[str, Any]:
    """For logging.config.dictConfig, and for uvicorn's processes."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"json": {"()": "drimed.service.logs.JsonFormatter"}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json", "stream": "ext://sys.stderr"}},
        "root": {"handlers": ["stderr"], "level": "WARNING"},
        "loggers": {
            "drimed": {"level": level.upper()},
            "uvicorn": {"level": level.upper()},
            "uvicorn.access": {"level": "CRITICAL"},  # drimed logs requests itself, without their query
        },
    }
