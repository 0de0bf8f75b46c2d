"""Swagger UI at `/docs`, served without the internet."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from fastapi import FastAPI, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html

_MEDIA: Final = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css"}
DOCS: Final = ("/docs", *(f"/docs/{name}" for name in _MEDIA))
_FRAMEWORK: Final = ("/docs", "/docs/oauth2-redirect", "/redoc")  # pages that load from elsewhere
_POLICY: Final = (
    "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; frame-ancestors 'none'"
)


def serve_docs(app: FastAPI) -> None:
    """Replace the framework's pages by one of ours, if the app describes itself."""
    routes = app.router.routes
    routes[:] = [route for route in routes if getattr(route, "path", "") not in _FRAMEWORK]
    if app.openapi_url is None:
        return

    async def page() -> Response:
        response = get_swagger_ui_html(
            openapi_url="openapi.json",  # relative: a proxy may add a prefix
            title=app.title,
            swagger_js_url="docs/swagger-ui-bundle.js",
            swagger_css_url="docs/swagger-ui.css",
            swagger_favicon_url="data:,",
        )
        response.headers["content-security-policy"] = _POLICY
        return response

    async def asset(request: Request) -> Response:
        name = request.url.path.rpartition("/")[2]
        content = files("fastapi_offline").joinpath("static", name).read_bytes()
        headers = {"cache-control": "max-age=86400"}
        return Response(content, media_type=_MEDIA[name], headers=headers)

    app.add_api_route(DOCS[0], page, include_in_schema=False)
    for path in DOCS[1:]:
        app.add_api_route(path, asset, include_in_schema=False)
