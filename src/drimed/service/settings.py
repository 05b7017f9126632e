"""Settings: flags come before the environment (DRIMED_*), that before a TOML file, that before the defaults."""

from __future__ import annotations

import ipaddress
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from drimed.errors import ConfigError, UnknownNameError
from drimed.trial.stores import DEFAULT

PREFIX = "DRIMED_"
LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a service runs.

    >>> Settings.resolve({"port": 9000}, {"DRIMED_PORT": "8001", "DRIMED_WORKERS": "2"})
    ... # doctest: +ELLIPSIS
    Settings(store='drimed.db', host='127.0.0.1', port=9000, workers=2, ...)
    """

    store: str = DEFAULT  # a SQLite file or postgresql://...
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1  # processes
    threads: int = 8  # for reading in each process, and as many for writing
    largest_body: int = 4 * 1024 * 1024  # bytes
    rate: float = 100.0  # requests a second for one token and process; 0: no limit
    burst: int = 200  # requests at once
    keep_answers: float = 72.0  # hours for which the answer to an idempotency key is kept
    connections: int = 2000  # at once in one process, as far as it may open files
    connections_per_address: int = 200  # of these, from one address
    proxies: str = ""  # addresses and networks, with commas: what they say of who asks (X-Forwarded-For) is believed
    grace: int = 30  # seconds to finish running requests when stopping
    log_level: str = "info"
    anchors: str = ""  # a file that gets the hash of a trial's log with every episode; empty: none

    def __post_init__(self) -> None:
        if self.log_level not in LEVELS:
            raise UnknownNameError("log level", self.log_level, LEVELS)
        for name, low, high in (
            ("port", 0, 65535),
            ("workers", 1, 64),
            ("threads", 1, 64),
            ("largest_body", 1024, 2**30),
            ("rate", 0, 1e9),
            ("burst", 1, 1e9),
            ("keep_answers", 0.01, 1e6),
            ("connections", 10, 60_000),
            ("connections_per_address", 1, 60_000),
            ("grace", 0, 3600),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ConfigError(f"{name} must be between {low:g} and {high:g}, got {value:g}")
        try:
            networks(self.proxies)
        except ValueError as error:
            raise ConfigError(f"proxies must be addresses or networks with commas between them: {error}") from None

    @staticmethod
    def resolve(
        flags: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None, file: Path | None = None
    ) -> Settings:
        """Flags (None: not given) before the environment before the file before the defaults."""
        found = _read(file) if file is not None else {}
        kinds = {f.name: type(f.default) for f in fields(Settings)}
        for name, kind in kinds.items():
            text = (environment or {}).get(PREFIX + name.upper())
            if text:
                found[name] = _converted(PREFIX + name.upper(), text, kind)
        found |= {name: value for name, value in (flags or {}).items() if value is not None}
        return Settings(**found)

    def environment(self) -> dict[str, str]:
        """The same as variables, for processes that this one starts."""
        return {PREFIX + name.upper(): str(value) for name, value in asdict(self).items()}

    @property
    def local(self) -> bool:
        """Whether only this machine can connect."""
        return is_loopback(self.host)


def networks(text: str) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    """Addresses and networks, with commas between them."""
    return [ipaddress.ip_network(part.strip(), strict=False) for part in text.split(",") if part.strip()]


def is_loopback(host: str) -> bool:
    """Whether a name or address means this machine and is only reachable from it."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _read(file: Path) -> dict[str, Any]:
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from None
    known = {f.name: type(f.default) for f in fields(Settings)}
    for name, value in data.items():
        if name not in known:
            raise UnknownNameError("setting", name, known)
        whole_for_float = known[name] is float and type(value) is int
        if type(value) is not known[name] and not whole_for_float:
            raise ConfigError(f"{file}: {name} must be {_WORDS[known[name]]}, got {value!r}")
    return data


_WORDS = {str: "a text", int: "a whole number", float: "a number"}


def _converted(name: str, text: str, kind: type) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(f"{name} must be {_WORDS[kind]}, got {text!r}") from None
