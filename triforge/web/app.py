"""What every API has: problem documents, the limit on bodies, health, readiness, metrics.

GET /healthz   200 while the process lives, and which version of triforge it is
GET /readyz    200 when requests can be served, else 503 with Retry-After
GET /metrics   Prometheus text
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest
from starlette.requests import HTTPConnection

from triforge import __version__
from triforge.metrics import identify
from triforge.telemetry.asgi import Watched
from triforge.web.description import describe
from triforge.web.limits import MAX_BODY, BodyLimit
from triforge.web.problems import OWN, handle_errors
from triforge.web.text import demand_text

Ready = Callable[[], Awaitable[None]]


def install(
    app: FastAPI,
    *,
    ready: Ready | None = None,
    registry: CollectorRegistry = REGISTRY,
    max_body: int = MAX_BODY,
    uploads: Mapping[str, int] | None = None,
    refresh: Ready | None = None,
) -> None:
    """Give an app the error handlers, the limit on bodies and the three routes above. Comes before all routes of the app.

    Args:
        app: the app of a service.
        ready: raises UnavailableError (or any error of ours) while the service cannot serve; None is always ready.
        registry: whose metrics `/metrics` shows.
        max_body: bytes of a request's body; more is a 413.
        uploads: other limits, by method and path (`POST /v1/pools`), for routes that do not keep the body in memory.
        refresh: measures what is measured only when somebody asks for the metrics; must not raise.
    """
    in_pieces = uploads or {}  # nobody has their bodies whole

    async def whole(asked: HTTPConnection) -> None:
        """Of a request; a socket has no body."""
        if isinstance(asked, Request) and f"{asked.method} {asked.scope['path']}" not in in_pieces:
            await demand_text(asked)

    app.router.dependencies.append(Depends(whole))
    app.add_middleware(BodyLimit, limit=max_body, uploads=in_pieces)
    app.add_middleware(Watched)  # outermost: what the others log is about the request, too
    describe(app)
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
