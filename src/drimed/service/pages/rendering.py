"""Templates, in which everything is escaped, and the files that pages load: style, script and icon."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter
from jinja2 import Environment
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from drimed.findings import page
from drimed.formatting import number, short
from drimed.records import Decision
from drimed.trial.columns import control_plot
from drimed.trial.seasons import when

LONG = "public, max-age=31536000, immutable"
MEDIA = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}

routes = APIRouter(include_in_schema=False)


@cache
def environment() -> Environment:
    """The templates of these pages."""
    made = page.environment("drimed.service.pages")
    made.filters |= {"seg": _segment, "number": number, "shown": shown}
    made.globals |= {
        "asset": address,
        "control_plot": control_plot,
        "place": place,
        "season": when,
    }
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


def shown(value: float | str) -> str:
    """A recorded value: the level of a category as it is, a number in short.

    >>> shown("sand"), shown(6.125)
    ('sand', '6.12')
    """
    return value if isinstance(value, str) else short(value)


def place(decision: Decision) -> str:
    """Who a decision is for, and where.

    >>> from types import SimpleNamespace as D
    >>> place(D(user="north", plot="A1", block="A")), place(D(user="north", plot=None, block=None))
    ('north, plot A1 in block A', 'north')
    """
    plot = "" if decision.plot is None else f", plot {decision.plot}"
    return decision.user + plot + ("" if decision.block is None else f" in block {decision.block}")


@routes.get("/static/{name}")
async def static(request: Request) -> Response:
    """A file that pages load."""
    name, files = request.path_params["name"], static_files()
    if name not in files:
        raise HTTPException(404)
    return Response(files[name], media_type=MEDIA[name.rpartition(".")[2]], headers={"Cache-Control": LONG})


def _segment(name: object) -> str:
    return quote(str(name), safe="", errors="replace")
