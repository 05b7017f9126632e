"""Templates, in which everything is escaped."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from drimed.formatting import short
from drimed.service.pages import assets, words


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
    made.filters |= {"short": short, "moment": moment, "percent": percent, "seg": _segment}
    made.globals |= {"asset": assets.address, "guard_did": words.guard_did, "in_words": words.state}
    return made


def render(template: str, **context: Any) -> str:
    """A page as text."""
    return environment().get_template(template).render(**context)


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


def _segment(name: object) -> str:
    return quote(str(name), safe="", errors="replace")
