"""What every API has: problem documents, the limit on bodies, its pages, health, readiness, metrics.

GET /healthz   200 while the process lives, and which version of triforge it is
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
from triforge.web.line_end import LineEnd
from triforge.web.origins import OriginGuard, OriginPolicy
from triforge.web.pages import serve_docs
from triforge.web.problems import OWN, handle_errors

Ready = Callable[[], Awaitable[None]]


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
    """Give an app the error handlers, what it refuses of browsers and bodies, and the three routes above.

    Args:
        ready: raises UnavailableError (or any error of ours) while the service cannot serve; None is always ready.
        bounds: what a request's body may be; more is a 413.
        bodies: other bounds, by method and path (`POST /v1/runs`).
        uploads: bytes, likewise, for routes that do not keep the body in memory and check it themselves.
        media: media types of bodies beside JSON, likewise.
        origins: from which pages and under which names the app may be asked.
        refresh: measures what is measured only when somebody asks for the metrics; must not raise.
    """
    app.add_middleware(LineEnd)
    app.add_middleware(BodyLimit, bounds=bounds, bodies=bodies or {}, uploads=uploads or {})
    app.add_middleware(OriginGuard, policy=origins, media=media)
    app.add_middleware(Watched)  # outermost: what the others log is about the request, too
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
