"""Templates, in which everything is escaped."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from drimed.report.page import short
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
    made.filters |= {"short": _signed, "moment": moment, "percent": percent, "seg": lambda s: quote(str(s), safe="")}
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


def percent(share: float, digits: int = 0) -> str:
    """A share in per cent; a small one is not called none."""
    return "< 1 %" if 0 < share < 0.005 and not digits else f"{100 * share:.{digits}f} %"


def _signed(value: float) -> str:
    return short(value).replace("-", "−")
