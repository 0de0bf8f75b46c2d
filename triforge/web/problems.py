"""Errors as problem documents (RFC 9457): what was given, what was expected, which option mends it."""

from __future__ import annotations

import errno
import itertools
import logging
import math
import reprlib
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from triforge.errors import (
    InputError,
    StorageError,
    TriforgeError,
    UnauthorizedError,
    UnavailableError,
)
from triforge.web.limits import RefusedBodyError

PROBLEM_TYPE: Final = "application/problem+json"

_log = logging.getLogger(__name__)
_MOST_PROBLEMS: Final = 100  # that are named
_MANY: Final = 10_000  # that pydantic writes out, all or none, while every other request waits
_UNREADABLE: Final = "There was an error parsing the body"  # FastAPI's detail


class ProblemResponse(JSONResponse):
    """A JSON response with the media type of problem documents."""

    media_type = PROBLEM_TYPE


def problem_of(
    error: TriforgeError, *, headers: Mapping[str, str] | None = None
) -> ProblemResponse:
    """Return the problem document of an error; `retry_after_s` is also the header Retry-After, rounded up."""
    body: dict[str, Any] = {
        "type": f"urn:triforge:{error.kind}",
        "title": error.kind.replace("_", " ").capitalize(),
        "status": error.status,
        "detail": error.detail,
        "error": openai_error(error.kind, error.status, error.detail),
    }
    sent = dict(headers or {})
    if error.problems:
        body["problems"] = list(error.problems)
    if error.retry_after_s is not None:
        body["retry_after_s"] = error.retry_after_s
        sent["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    if isinstance(error, UnauthorizedError):
        sent["WWW-Authenticate"] = "Bearer"
    return ProblemResponse(body, status_code=error.status, headers=sent)


def openai_error(kind: str, status: int, detail: str) -> dict[str, Any]:
    """Return the error object that clients of OpenAI's API read."""
    return {"message": detail, "type": kind, "param": None, "code": status}


def input_error(error: ValidationError | RequestValidationError, *, within: str = "") -> InputError:
    """Return pydantic's error as one of ours, with one sentence a field; `within` stands before the names of fields."""
    count = error.error_count() if isinstance(error, ValidationError) else 0
    if count > _MANY:
        return InputError(
            f"body: given {count} fields or items that are wrong, expected none; send a few of them to read what is wrong with each"
        )
    items = error.errors()[:_MOST_PROBLEMS]
    wrong = [item["loc"] for item in items]
    # a list that has lost its wrong items is too short, too
    inner = [i for i in items if not any(i["loc"] == at[: len(i["loc"])] != at for at in wrong)]
    problems = tuple(_sentence(item, within) for item in inner)
    return InputError("; ".join(problems[:3]) or "malformed request", problems=problems)


def _sentence(item: Mapping[str, Any], within: str) -> str:
    path = (*([within] if within else ()), *item["loc"])
    field = ".".join(str(part) for part in path) or "body"
    if item["type"] == "extra_forbidden":
        return f"{field}: unknown field"
    if item["type"] == "json_invalid":  # its location, if it has one, is a character
        reason = str(item.get("ctx", {}).get("error", item["msg"]))
        if "recursion limit" in reason:
            reason = "nested too deeply"
        place = f" at character {item['loc'][-1]}" if item["loc"] else ""
        return f"body: not JSON: {reason}{place}"
    if field == "body" and isinstance(item.get("input"), bytes):  # the framework has not parsed it
        return "body: expected JSON, and the header `Content-Type: application/json`"
    reason = str(item["msg"]).removeprefix("Value error, ")
    value = _SHORTENED.repr(item.get("input"))
    return f"{field}: {reason} (given {value if len(value) <= 80 else value[:77] + '...'})"


class _Shortened(reprlib.Repr):
    """A representation that takes no longer for a large value."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlist = self.maxtuple = self.maxdict = 8
        self.maxstring = self.maxlong = self.maxother = 80

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        """Show the first fields as they come; the base class sorts all of them."""
        return super().repr_dict(dict(itertools.islice(x.items(), self.maxdict + 1)), level)


_SHORTENED: Final = _Shortened()


async def _on_triforge_error(_: Request | None, error: Exception) -> Response:
    assert isinstance(error, TriforgeError)
    if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        # Clients ask a service that is not ready again and again.
        level = logging.DEBUG if isinstance(error, UnavailableError) else logging.WARNING
        _log.log(level, "%s: %s", error.kind, error.detail)
    return problem_of(error)


async def _on_invalid_request(_: Request | None, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return problem_of(input_error(error))


async def _on_http_error(request: Request | None, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error, RefusedBodyError):
        return problem_of(error.reason)
    if error.detail == _UNREADABLE:
        cause = error.__cause__
        deep = isinstance(cause, RecursionError)
        reason = "nested too deeply" if deep else str(cause or "") or "it is incomplete"
        return problem_of(InputError(f"body: not JSON: {reason}"))
    phrase = HTTPStatus(error.status_code).phrase
    detail = str(error.detail)
    if error.status_code == HTTPStatus.NOT_FOUND and detail == phrase and request is not None:
        detail = f"{request.method} {request.url.path[:200]}: there is no such route; /openapi.json lists all"
    shown = TriforgeError(detail)
    shown.kind = phrase.lower().replace(" ", "_").replace("-", "_")
    shown.status = error.status_code
    return problem_of(shown, headers=error.headers)


async def _on_os_error(_: Request | None, error: Exception) -> Response:
    assert isinstance(error, OSError)
    if error.errno == errno.ENAMETOOLONG:
        return problem_of(InputError("given a path that is longer than this machine takes"))
    if error.errno == errno.ENOSPC:
        mend = "free space or move TRIFORGE_ARTIFACTS_URL elsewhere"
        return problem_of(StorageError(f"the disk is full; {mend}"))
    if isinstance(error, ConnectionError | TimeoutError):
        return problem_of(UnavailableError(f"a service that is needed does not answer: {error}"))
    raise error


async def _on_unexpected(_: Request | None, error: Exception) -> Response:
    # The server logs the traceback; the client learns the type and nothing private.
    return problem_of(TriforgeError(f"unexpected {type(error).__name__}; the log has the details"))


_HANDLERS: Mapping[type[Exception], Callable[[Request | None, Exception], Awaitable[Response]]] = {
    TriforgeError: _on_triforge_error,
    RequestValidationError: _on_invalid_request,
    HTTPException: _on_http_error,
    OSError: _on_os_error,
}


async def response_to(error: Exception) -> Response:
    """Return the response to an error that middleware met; log an unexpected one."""
    for kind, handler in _HANDLERS.items():
        if isinstance(error, kind):
            try:
                return await handler(None, error)
            except OSError:
                break
    _log.error("a request failed", exc_info=error)
    return await _on_unexpected(None, error)


def handle_errors(app: FastAPI) -> None:
    """Answer every error of an app with a problem document."""
    for kind, handler in _HANDLERS.items():
        app.add_exception_handler(kind, handler)
    app.add_exception_handler(Exception, _on_unexpected)
