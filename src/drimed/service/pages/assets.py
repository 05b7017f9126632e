"""Style, script and icon: local files, read once, with an address that changes when they do."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

MEDIA = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
LONG = "public, max-age=31536000, immutable"

routes = APIRouter(include_in_schema=False)


@routes.get("/static/{name}")
async def static(request: Request) -> Response:
    """One file."""
    name = request.path_params["name"]
    if name not in files():
        raise HTTPException(404)
    return Response(files()[name], media_type=MEDIA[name.rpartition(".")[2]], headers={"Cache-Control": LONG})


@cache
def files() -> dict[str, bytes]:
    """Every file by its name."""
    folders = [resources.files(package) / "static" for package in ("drimed.service.pages", "drimed.findings")]
    return {f.name: f.read_bytes() for at in folders for f in at.iterdir() if f.name.rpartition(".")[2] in MEDIA}


@cache
def address(name: str) -> str:
    """Where a file is."""
    return f"/static/{name}?v={hashlib.sha256(files()[name]).hexdigest()[:12]}"
