"""Settings of the service, and its log: one JSON object a line, without tokens, bodies or query strings.

Flags come before the environment (DRIMED_*), that before a TOML file, that before the defaults.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import time
import tomllib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from drimed.errors import ConfigError, UnknownNameError
from drimed.records import DEFAULT_STORE

PREFIX = "DRIMED_"
FIELDS = "drimed_fields"  # attribute of a log record: what is logged beside its message
REQUEST = "request"  # message of the line that every request gets
EVERY = 1.0  # seconds between two lines of one kind of error
MOST_KINDS = 1000


def networks(text: str) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    return [ipaddress.ip_network(part.strip(), strict=False) for part in text.split(",") if part.strip()]


class Settings(BaseModel):
    """Settings of a service.

    >>> Settings.resolve({"port": 9000}, {"DRIMED_PORT": "8001", "DRIMED_WORKERS": "2"})
    ... # doctest: +ELLIPSIS
    Settings(store='drimed.db', host='127.0.0.1', port=9000, workers=2, ...)
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    store: str = DEFAULT_STORE  # a SQLite file or postgresql://...
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    workers: Annotated[int, Field(ge=1, le=64)] = 1  # processes
    threads: Annotated[int, Field(ge=1, le=64)] = 8  # for reads in each process, and as many for writes
    largest_body: Annotated[int, Field(ge=1024, le=2**30)] = 4 * 1024 * 1024  # bytes
    largest_sheet: Annotated[int, Field(ge=1000, le=10**7)] = 200_000  # cells
    reading: Annotated[float, Field(gt=0, le=600)] = 20.0  # seconds for one workbook or trial file
    rate: Annotated[float, Field(ge=0, le=1e9)] = 5000.0  # requests a second of one token in one process; 0: no limit
    burst: Annotated[int, Field(ge=1, le=10**9)] = 10_000  # requests at once
    keep_answers: Annotated[float, Field(ge=0.01, le=1e6)] = 72.0  # hours that answers to idempotency keys are kept
    connections: Annotated[int, Field(ge=10, le=60_000)] = 2000  # at once in one process, as far as it may open files
    connections_per_address: Annotated[int, Field(ge=1, le=60_000)] = 200
    # Addresses and networks, separated by commas, whose X-Forwarded-For is believed.
    proxies: Annotated[str, AfterValidator(lambda text: ",".join(map(str, networks(text))))] = ""
    grace: Annotated[int, Field(ge=0, le=3600)] = 30  # seconds to finish running requests when stopping
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    overdue: Annotated[float, Field(ge=0, le=36500)] = 0.0  # days after which a missing outcome is an alert; 0: never
    prove: Annotated[float, Field(ge=0, le=1e5)] = (
        0.0  # hours between two proofs of all logs; 0: none but those asked for
    )
    webhook: str = ""  # address that alerts are posted to; empty: none
    webhook_secret: Annotated[str, Field(repr=False)] = ""  # it signs them
    anchors: str = ""  # a file that gets the hash of a trial's log with every episode; empty: none

    @staticmethod
    def resolve(
        flags: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None, file: Path | None = None
    ) -> Settings:
        """Merge flags (None: not given), environment, file and defaults."""
        try:
            values = {} if file is None else tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"cannot read {file}: {error}") from None
        names = list(Settings.model_fields)
        for name in set(values).difference(names):
            raise UnknownNameError("setting", name, names)
        values |= {n: text for n in names if (text := (environment or {}).get(PREFIX + n.upper()))}
        values |= {name: value for name, value in (flags or {}).items() if value is not None}
        try:
            return Settings(**values)
        except ValidationError as error:
            faults = (f"{e['loc'][0]}: {e['msg']}, got {e['input']!r}" for e in error.errors())
            raise ConfigError("\n".join(faults)) from None

    def environment(self) -> dict[str, str]:
        """The same settings as variables, for worker processes."""
        return {PREFIX + name.upper(): str(value) for name, value in self.model_dump().items()}


class JsonFormatter(logging.Formatter):
    """Log lines with time, level, logger, message and the record's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
        } | getattr(record, FIELDS, {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class OnePerSecond(logging.Filter):
    """Pass one line a second of each kind of error; the next one counts those that were left out.

    Errors and warnings of one wording are one kind, and so are refusals of one status to callers without a token.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[tuple[Any, ...], tuple[float, int]] = {}  # time of the last line, and lines left out since

    def filter(self, record: logging.LogRecord) -> bool:
        fields = getattr(record, FIELDS, {})
        if record.msg == REQUEST:
            if fields.get("actor") is not None or not 400 <= fields.get("status", 0) < 500:
                return True
            kind: tuple[Any, ...] = REQUEST, fields["status"]
        elif record.levelno < logging.WARNING:
            return True
        else:
            kind = record.name, record.levelno, str(record.msg)[:200], (record.exc_info or (None,))[0]
        now = self._clock()
        last, left_out = self._kinds.get(kind, (float("-inf"), 0))
        if now - last < EVERY:
            self._kinds[kind] = last, left_out + 1
            return False
        if len(self._kinds) >= MOST_KINDS:
            self._kinds.clear()
        self._kinds[kind] = now, 0
        if left_out:
            setattr(record, FIELDS, fields | {"left_out": left_out})
        return True


def log_configuration(level: str) -> dict[str, Any]:
    """Configuration for logging.config.dictConfig, and for uvicorn's processes."""
    handler = {"class": "logging.StreamHandler", "formatter": "json", "filters": ["calm"], "stream": "ext://sys.stderr"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"json": {"()": f"{__name__}.{JsonFormatter.__name__}"}},
        "filters": {"calm": {"()": f"{__name__}.{OnePerSecond.__name__}"}},
        "handlers": {"stderr": handler},
        "root": {"handlers": ["stderr"], "level": "WARNING"},
        "loggers": {
            "drimed": {"level": level.upper()},
            "uvicorn": {"level": level.upper()},
            "uvicorn.access": {"level": "CRITICAL"},  # drimed logs requests itself, without their query
        },
    }
