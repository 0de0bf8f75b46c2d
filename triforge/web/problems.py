"""Errors as problem documents (RFC 9457): what was given, what was expected, which option to turn."""

from __future__ import annotations

import errno
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from triforge.errors import (
    InputError,
    StorageError,
    TriforgeError,
    UnauthorizedError,
    UnavailableError,
)
from triforge.web.limits import RefusedBodyError

PROBLEM_TYPE: Final = "application/problem+json"
JSON_TYPES: Final = ("application/json", PROBLEM_TYPE)
OWN: Final = ("/healthz", "/readyz", "/metrics")  # routes of every service, in no description
METHODS: Final = ("get", "put", "post", "patch", "delete")

_log = logging.getLogger(__name__)
_MOST_PROBLEMS: Final = 100  # that are named
# What the framework says of all but JSON's grammar.
_UNREADABLE: Final = "There was an error parsing the body"


class ProblemResponse(JSONResponse):
    """A JSON response with the media type of problem documents."""

    media_type = PROBLEM_TYPE

    def render(self, content: Any) -> bytes:
        """With a newline: what stands before the app refuses past `LineEnd`."""
        return super().render(content) + b"\n"


def problem(
    kind: str,
    status: int,
    detail: str,
    *,
    problems: Sequence[str] = (),
    retry_after_s: float | None = None,
    headers: Mapping[str, str] | None = None,
) -> ProblemResponse:
    """A problem document; `kind` becomes `urn:triforge:<kind>`, `retry_after_s` also the header Retry-After, rounded up."""
    body: dict[str, Any] = {
        "type": f"urn:triforge:{kind}",
        "title": kind.replace("_", " ").capitalize(),
        "status": status,
        "detail": detail,
        "error": readable_error(kind, status, detail),
    }
    if problems:
        body["problems"] = list(problems)
    sent = dict(headers or {})
    if retry_after_s is not None:
        body["retry_after_s"] = retry_after_s
        sent["Retry-After"] = str(max(1, math.ceil(retry_after_s)))
    return ProblemResponse(body, status_code=status, headers=sent)


def readable_error(kind: str, status: int, detail: str) -> dict[str, Any]:
    """The sentence once more, where clients of OpenAI's API look for it."""
    return {"message": detail, "type": kind, "param": None, "code": status}


def of_error(error: TriforgeError) -> ProblemResponse:
    """The problem document of one of our own errors."""
    return problem(
        error.kind, error.status, error.detail, problems=error.problems, retry_after_s=error.retry_after_s,
        headers={"WWW-Authenticate": "Bearer"} if isinstance(error, UnauthorizedError) else None,
    )  # fmt: skip


def input_error(error: ValidationError | RequestValidationError) -> InputError:
    """What pydantic found, as an error with one sentence a field."""
    problems = tuple(_sentence(item) for item in error.errors()[:_MOST_PROBLEMS])
    return InputError("; ".join(problems[:3]) or "malformed request", problems=problems)


def _sentence(item: Mapping[str, Any]) -> str:
    field = ".".join(str(part) for part in item["loc"]) or "body"
    if item["type"] == "extra_forbidden":
        return f"{field}: unknown field"
    if item["type"] == "json_invalid":  # its place, if it has one, is a character and no field
        reason = str(item.get("ctx", {}).get("error", item["msg"]))
        place = f" at character {item['loc'][-1]}" if item["loc"] else ""
        return f"body: not JSON: {reason}{place}"
    if field == "body" and isinstance(item.get("input"), bytes):  # the framework has not read it
        return "body: expected JSON, and the header `Content-Type: application/json` that says so"
    reason = str(item["msg"]).removeprefix("Value error, ")
    given = repr(item.get("input"))
    return f"{field}: {reason} (given {given if len(given) <= 80 else given[:77] + '...'})"


async def _on_triforge_error(_: Request | None, error: Exception) -> Response:
    assert isinstance(error, TriforgeError)
    if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        # Who is asked before it is ready is asked again and again.
        level = logging.DEBUG if isinstance(error, UnavailableError) else logging.WARNING
        _log.log(level, "%s: %s", error.kind, error.detail)
    return of_error(error)


async def _on_invalid_request(_: Request | None, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return of_error(input_error(error))


def _reason(cause: BaseException | None) -> str:
    """Why a body could not be read."""
    if isinstance(cause, UnicodeDecodeError):
        return f"no UTF-8: {cause.reason} at byte {cause.start}; bodies are sent as they are, not compressed"
    if isinstance(cause, RecursionError):
        return "nested too deeply"
    if isinstance(cause, ValueError):
        return "a number has more digits than are read"
    return "it did not come whole"


async def _on_http_error(request: Request | None, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error, RefusedBodyError):
        return of_error(error.reason)
    if error.detail == _UNREADABLE:
        return of_error(InputError(f"body: not JSON: {_reason(error.__cause__)}"))
    phrase = HTTPStatus(error.status_code).phrase
    kind = phrase.lower().replace(" ", "_").replace("-", "_")
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED and request is not None:
        headers["Allow"] = ", ".join(_methods_at(request))  # of all routes there, not of the first
    detail = str(error.detail)
    if error.status_code == HTTPStatus.NOT_FOUND and detail == phrase and request is not None:
        detail = f"{request.method} {request.url.path[:200]}: there is no such route; /openapi.json lists all"
    return problem(kind, error.status_code, detail, headers=headers)


def _methods_at(request: Request) -> list[str]:
    """The methods that the app's description names for the path of a request, and those of the routes above."""
    found = {"GET"} if request.url.path in OWN else set()
    for path, item in request.app.openapi()["paths"].items():
        if compile_path(path)[0].match(request.url.path):
            found |= {method.upper() for method in METHODS if method in item}
    return sorted(found)


async def _on_os_error(_: Request | None, error: Exception) -> Response:
    assert isinstance(error, OSError)
    if error.errno == errno.ENAMETOOLONG:
        return of_error(InputError("a path is longer than this machine takes"))
    if error.errno == errno.ENOSPC:
        mend = "free space or move TRIFORGE_ARTIFACTS_URL elsewhere"
        return of_error(StorageError(f"the disk is full; {mend}"))
    if isinstance(error, ConnectionError | TimeoutError):
        return of_error(UnavailableError(f"a service that is needed does not answer: {error}"))
    raise error


async def _on_anything(_: Request | None, error: Exception) -> Response:
    # The server logs the traceback itself; the caller learns the type and nothing private.
    return problem("internal", 500, f"unexpected {type(error).__name__}; the log has the details")


_HANDLERS: Mapping[type[Exception], Callable[[Request | None, Exception], Awaitable[Response]]] = {
    TriforgeError: _on_triforge_error,
    RequestValidationError: _on_invalid_request,
    HTTPException: _on_http_error,
    OSError: _on_os_error,
}


async def response_to(error: Exception) -> Response:
    """The response to an error, for whoever answers past the framework. What it does not expect it logs."""
    for kind, handler in _HANDLERS.items():
        if isinstance(error, kind):
            try:
                return await handler(None, error)
            except OSError:
                break
    _log.error("a request failed", exc_info=error)
    return await _on_anything(None, error)


def handle_errors(app: FastAPI) -> None:
    """Let every error leave an app as a problem document."""
    for kind, handler in _HANDLERS.items():
        app.add_exception_handler(kind, handler)
    app.add_exception_handler(Exception, _on_anything)
