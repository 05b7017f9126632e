"""Templates, in which everything is escaped."""

from __future__ import annotations

from functools import cache
from typing import Any
from urllib.parse import quote

from jinja2 import Environment

from drimed.findings import page
from drimed.service.pages import assets, words


@cache
def environment() -> Environment:
    """The templates of these pages."""
    made = page.environment("drimed.service.pages")
    made.filters["seg"] = _segment
    made.globals |= {"asset": assets.address, "guard_did": words.guard_did, "in_words": words.state}
    return made


def render(template: str, **context: Any) -> str:
    """A page as text."""
    return environment().get_template(template).render(**context)


def _segment(name: object) -> str:
    return quote(str(name), safe="", errors="replace")
