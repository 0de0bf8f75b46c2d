"""What an app's description (OpenAPI) says of errors: they are problem documents, and which routes send which."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI

from triforge.web.problems import METHODS, PROBLEM_TYPE

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
_WITH_BODY = (400, 413, 415, 422)
# a page of others asks; a service or the database is away; the disk is full
_ALWAYS = (403, 503, 507)


def files(*media: str) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that answers with text or bytes of these media types and not with JSON."""
    content = {each: {"schema": {"type": "string"}} for each in media}
    return {200: {"description": HTTPStatus.OK.phrase, "content": content}}


def answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that may answer with these errors beside those that `describe` finds itself."""
    return {status: {"description": HTTPStatus(status).phrase} for status in statuses}


def describe(app: FastAPI) -> None:
    """Let the app's description say that errors are problem documents.

    A path with a parameter may say 404, a route with parameters 422, one with a body 400, 413, 415 and 422; further ones
    are named by the route (`answers`).
    """

    def with_problems(plain: dict[str, Any]) -> dict[str, Any]:
        document = _hoisted(plain)
        schemas = document["components"]["schemas"]
        schemas["Problem"] = _PROBLEM
        for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's own; never sent
            schemas.pop(name, None)
        for path, item in document["paths"].items():
            for method in METHODS:
                if method in item:
                    _errors(path, item[method])
        return document

    extend(app, with_problems)


def extend(app: FastAPI, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Let `change` have its say in the app's description when it is first asked for."""
    plain = app.openapi
    app.openapi = functools.cache(lambda: change(plain()))  # type: ignore[method-assign] # FastAPI's way


def _hoisted(document: dict[str, Any]) -> dict[str, Any]:
    """A description in which the parts of models that routes describe by hand stand where all others do."""
    text = json.dumps(document).replace('"#/$defs/', '"#/components/schemas/')
    found: dict[str, Any] = json.loads(text)
    schemas = found.setdefault("components", {}).setdefault("schemas", {})
    for item in found["paths"].values():
        for method in METHODS:
            body = item.get(method, {}).get("requestBody", {})
            for media in body.get("content", {}).values():
                for name, schema in media["schema"].pop("$defs", {}).items():
                    schemas.setdefault(name, schema)
    return found


def _errors(path: str, operation: dict[str, Any]) -> None:
    responses = operation["responses"]
    responses.pop("422", None)
    found = {int(status) for status in responses if status.isdecimal() and int(status) >= 400}
    found |= {*_ALWAYS}
    found |= {404} if "{" in path else set()
    found |= {422} if operation.get("parameters") else set()
    found |= {*_WITH_BODY} if "requestBody" in operation else set()
    for status in sorted(found):
        said = responses.get(str(status), {})
        responses[str(status)] = {
            "description": said.get("description", HTTPStatus(status).phrase),
            "content": {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
