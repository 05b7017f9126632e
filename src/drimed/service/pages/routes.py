"""Every page, for the application to include."""

from __future__ import annotations

from fastapi import APIRouter

from drimed.service.pages import asking, assets, history, home, managing, overview, plan, signing, telling

routes = APIRouter()
for _part in (assets, signing, home, overview, plan, asking, telling, history, managing):
    routes.include_router(_part.routes)
