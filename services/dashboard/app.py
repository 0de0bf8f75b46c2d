"""The ASGI app of the dashboard."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from services.dashboard import compare, labels, rollouts, runs, tasks
from services.dashboard.apis import Apis
from services.dashboard.templates import FOLDER, page
from triforge.errors import TriforgeError
from triforge.web.app import install
from triforge.web.origins import OriginPolicy

_HEADERS = {
    # a page loads files of this service only; a model's text that was taken as HTML could load and run nothing
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
}


def create_app(*, apis: Apis, origins: OriginPolicy = OriginPolicy()) -> FastAPI:  # noqa: B008 - frozen
    """Make the app over the APIs of a deployment."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await apis.close()

    app = FastAPI(title="triforge dashboard", version="1", lifespan=lifespan, openapi_url=None)
    app.state.apis = apis
    forms = dict.fromkeys(("POST /actions", "POST /labels"), "application/x-www-form-urlencoded")
    install(app, origins=origins, media=forms)
    for part in (runs, rollouts, labels, tasks, compare):
        app.include_router(part.router)
    app.mount("/assets", StaticFiles(directory=FOLDER / "assets"))
    for kind in (TriforgeError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, _problem)
    app.middleware("http")(_with_headers)
    return app


async def _problem(_: Request, error: Exception) -> HTMLResponse:
    status = getattr(error, "status", getattr(error, "status_code", 422))
    detail = getattr(error, "detail", "")
    if isinstance(error, RequestValidationError):
        detail = f"the address is malformed: {', '.join(str(item['loc'][-1]) for item in error.errors())}"
    asks = {"www-authenticate": 'Basic realm="triforge: the key is the password"'}
    shown = page("problem", status=status, detail=detail)
    return HTMLResponse(shown, status_code=status, headers=asks if status == 401 else {})


async def _with_headers(
    request: Request, call_next: Callable[[Request], Awaitable[Response]]
) -> Response:
    response = await call_next(request)
    response.headers.update(_HEADERS)
    return response
