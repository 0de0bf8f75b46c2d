"""The common parts of every API: problem documents, limits on bodies, pages, health, readiness, metrics.

GET /healthz   200 while the process lives, with its version of triforge
GET /readyz    200 when requests can be served, else 503 with Retry-After
GET /metrics   Prometheus text
GET /docs      Swagger UI, where the API describes itself
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest

from triforge import __version__
from triforge.metrics import identify
from triforge.telemetry.asgi import Watched
from triforge.web.description import describe
from triforge.web.limits import SMALL, BodyLimit, Bounds
from triforge.web.origins import OriginGuard, OriginPolicy
from triforge.web.pages import serve_docs
from triforge.web.problems import handle_errors

Ready = Callable[[], Awaitable[None]]
OWN = ("/healthz", "/readyz", "/metrics")  # routes of every service, in no description


def install(
    app: FastAPI,
    *,
    ready: Ready | None = None,
    registry: CollectorRegistry = REGISTRY,
    bounds: Bounds = SMALL,
    bodies: Mapping[str, Bounds] | None = None,
    uploads: Mapping[str, int] | None = None,
    media: Mapping[str, str] | None = None,
    origins: OriginPolicy = OriginPolicy(),  # noqa: B008 - frozen
    refresh: Ready | None = None,
) -> None:
    """Add the error handlers, the checks of origins and bodies, and the routes above to an app.

    Args:
        ready: raises UnavailableError (or another error of ours) while the service cannot serve; None is always ready.
        bounds: limits of a request's body; a larger one is answered 413.
        bodies: other limits, by method and path (`POST /v1/runs`).
        uploads: bytes, likewise, for routes that read their body in pieces and check it themselves.
        media: media types of bodies in addition to JSON, likewise.
        origins: the pages and host names that the app serves.
        refresh: updates metrics that are measured on demand; must not raise.
    """
    app.add_middleware(BodyLimit, bounds=bounds, bodies=bodies or {}, uploads=uploads or {})
    app.add_middleware(OriginGuard, policy=origins, media=media)
    app.add_middleware(Watched)  # outermost: log lines of the others carry the request's ids
    describe(app)
    serve_docs(app)
    handle_errors(app)

    async def healthz() -> Response:
        return JSONResponse({"status": "alive", "version": __version__})

    async def readyz() -> Response:
        if ready is not None:
            await ready()
        return JSONResponse({"status": "ready"})

    service = app.title.removeprefix("triforge ").partition(" ")[0]  # of "triforge policy (reward)"
    identify(service, "api", registry)

    async def metrics() -> Response:
        if refresh is not None:
            await refresh()
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    for path, route in zip(OWN, (healthz, readyz, metrics), strict=True):
        app.add_api_route(path, route, methods=["GET"], include_in_schema=False)
