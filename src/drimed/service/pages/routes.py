"""Every address of the pages, for the application to include."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from drimed.service.pages import asking, history, home, managing, overview, plan, rendering, telling

LONG = "public, max-age=31536000, immutable"

routes = APIRouter(include_in_schema=False)


@routes.get("/static/{name}")
async def static(request: Request) -> Response:
    """A file that pages load."""
    name, files = request.path_params["name"], rendering.static_files()
    if name not in files:
        raise HTTPException(404)
    media = rendering.MEDIA[name.rpartition(".")[2]]
    return Response(files[name], media_type=media, headers={"Cache-Control": LONG})


for _part in (home, overview, plan, asking, telling, history, managing):
    routes.include_router(_part.routes)
