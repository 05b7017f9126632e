"""Templates, in which everything is escaped, and the files that pages load: style, script and icon."""

from __future__ import annotations

import hashlib
from datetime import datetime
from functools import cache
from importlib import resources
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from drimed.report.page import short
from drimed.service.pages import words

MEDIA = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}


@cache
def environment() -> Environment:
    """The templates of these pages."""
    made = Environment(
        loader=PackageLoader("drimed.service.pages", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"short": short, "moment": moment, "percent": percent, "seg": _segment, "number": words.number}
    made.globals |= {"asset": address, "guard_did": words.guard_did, "counted": counted}
    return made


def render(template: str, **context: Any) -> str:
    """A page as text."""
    return environment().get_template(template).render(**context)


@cache
def static_files() -> dict[str, bytes]:
    """Every file that pages load, by its name."""
    folder = resources.files("drimed.service.pages") / "static"
    return {f.name: f.read_bytes() for f in folder.iterdir() if f.name.rpartition(".")[2] in MEDIA}


@cache
def address(name: str) -> str:
    """Where a file is; the address changes when the file does."""
    return f"/static/{name}?v={hashlib.sha256(static_files()[name]).hexdigest()[:12]}"


def moment(time: str) -> str:
    """A time as a person reads it.

    >>> moment("2026-04-02T08:15:30.123456+00:00")
    '2026-04-02 08:15 UTC'
    """
    return datetime.fromisoformat(time).strftime("%Y-%m-%d %H:%M UTC")


def percent(share: float) -> str:
    """A share in per cent; a small one is not called none, nor a large one all.

    >>> [percent(p) for p in (0.0, 0.001, 0.42, 0.999, 1.0)]
    ['0 %', '< 1 %', '42 %', '> 99 %', '100 %']
    """
    if 0 < share < 0.005:
        return "< 1 %"
    return "> 99 %" if 0.995 <= share < 1 else f"{100 * share:.0f} %"


def counted(n: int, what: str) -> str:
    """A number and its noun.

    >>> counted(1, "user"), counted(1200, "decision")
    ('1 user', '1,200 decisions')
    """
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def _segment(name: object) -> str:
    return quote(str(name), safe="", errors="replace")
