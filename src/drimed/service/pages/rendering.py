"""Templates, in which everything is escaped, and the files that pages load: style, script and icon."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from typing import Any
from urllib.parse import quote

from jinja2 import Environment

from drimed.findings import page
from drimed.service.pages import words

MEDIA = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}


@cache
def environment() -> Environment:
    """The templates of these pages."""
    made = page.environment("drimed.service.pages")
    made.filters |= {"seg": _segment, "number": words.number}
    made.globals |= {"asset": address, "guard_did": words.guard_did}
    return made


def render(template: str, **context: Any) -> str:
    """A page as text."""
    return environment().get_template(template).render(**context)


@cache
def static_files() -> dict[str, bytes]:
    """Every file that pages load, by its name."""
    folders = [resources.files(package) / "static" for package in ("drimed.service.pages", "drimed.findings")]
    return {f.name: f.read_bytes() for at in folders for f in at.iterdir() if f.name.rpartition(".")[2] in MEDIA}


@cache
def address(name: str) -> str:
    """Where a file is; the address changes when the file does."""
    return f"/static/{name}?v={hashlib.sha256(static_files()[name]).hexdigest()[:12]}"


def _segment(name: object) -> str:
    return quote(str(name), safe="", errors="replace")
