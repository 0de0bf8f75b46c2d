"""The service's app: HTML pages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from starlette.exceptions import HTTPException
from starlette.responses import Response

from services.dashboard.apis import Apis
from services.dashboard.pages import Pages
from services.dashboard.routes import routes
from triforge.errors import TriforgeError
from triforge.web.app import install
from triforge.web.limits import MEBIBYTE, Bounds
from triforge.web.origins import OriginPolicy

_FORM = "application/x-www-form-urlencoded"
_HEADERS = {
    # everything a page loads is the service's own; a text of a model that slipped through as HTML could load and run nothing
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
}


def create_app(*, apis: Apis, origins: OriginPolicy = OriginPolicy()) -> FastAPI:  # noqa: B008 - frozen
    """The ASGI app of the dashboard."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await apis.close()

    app = FastAPI(title="triforge dashboard", version="1", lifespan=lifespan, openapi_url=None)
    pages = Pages(apis)
    install(
        app,
        origins=origins,
        media=dict.fromkeys(("POST /actions", "POST /try"), _FORM),
        bodies={"POST /try": Bounds(4 * MEBIBYTE)},
    )
    app.include_router(routes(apis, pages))

    async def problem(_: Request, error: Exception) -> HTMLResponse:
        status, detail = 500, str(error)
        if isinstance(error, TriforgeError):
            status, detail = error.status, error.detail
        elif isinstance(error, HTTPException):
            status, detail = error.status_code, str(error.detail)
        elif isinstance(error, RequestValidationError):
            fields = ", ".join(str(item["loc"][-1]) for item in error.errors())
            status, detail = 422, f"the address is malformed: {fields}"
        asks = {"www-authenticate": 'Basic realm="triforge: the key is the password"'}
        return HTMLResponse(
            pages.problem(status, detail), status_code=status, headers=asks if status == 401 else {}
        )

    for kind in (TriforgeError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, problem)

    @app.middleware("http")
    async def headers(
        request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        response = await call_next(request)
        response.headers.update(_HEADERS)
        return response

    return app
