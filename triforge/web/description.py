"""Errors in an app's description (OpenAPI): problem documents, with the statuses that a route declares."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI

from triforge.web.problems import PROBLEM_TYPE

_PROBLEM: dict[str, Any] = {
    "type": "object",
    "description": "A problem document (RFC 9457).",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "description": "urn:triforge:<kind>"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "The sentence for a person."},
        "problems": {
            "type": "array",
            "items": {"type": "string"},
            "description": "One sentence a bad row or field.",
        },
        "retry_after_s": {"type": "number", "description": "Also the header Retry-After."},
    },
}


def files(*media: str) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route that sends text or bytes of these media types."""
    content = {each: {"schema": {"type": "string"}} for each in media}
    return {200: {"description": HTTPStatus.OK.phrase, "content": content}}


def answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route that may send these errors; `describe` adds a default for all others."""
    return {status: {"description": HTTPStatus(status).phrase} for status in statuses}


def describe(app: FastAPI) -> None:
    """Describe every error of an app as a problem document."""

    def with_problems(plain: dict[str, Any]) -> dict[str, Any]:
        document = _hoisted(plain)
        schemas = document["components"]["schemas"]
        schemas["Problem"] = _PROBLEM
        for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's own; never sent
            schemas.pop(name, None)
        content = {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
        for _, _, operation in operations(document):
            responses = operation["responses"]
            responses.pop("422", None)
            responses["default"] = {"description": "Any error"}
            for status, response in responses.items():
                if not status.startswith(("2", "3")):
                    response["content"] = content
        return document

    extend(app, with_problems)


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield method, path and operation of each route of a description."""
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield method.upper(), path, operation


def extend(app: FastAPI, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Apply `change` to the app's description when it is first requested."""
    plain = app.openapi
    app.openapi = functools.cache(lambda: change(plain()))  # type: ignore[method-assign] # FastAPI's way


def _hoisted(document: dict[str, Any]) -> dict[str, Any]:
    """Return the description with the definitions of hand-written bodies among the other schemas."""
    text = json.dumps(document).replace('"#/$defs/', '"#/components/schemas/')
    moved: dict[str, Any] = json.loads(text)
    schemas = moved.setdefault("components", {}).setdefault("schemas", {})
    for _, _, operation in operations(moved):
        for media in operation.get("requestBody", {}).get("content", {}).values():
            for name, schema in media["schema"].pop("$defs", {}).items():
                schemas.setdefault(name, schema)
    return moved
