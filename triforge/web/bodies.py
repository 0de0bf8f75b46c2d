"""Bodies of requests as models and long work of requests, off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from triforge.errors import InputError
from triforge.web.problems import input_error

_M = TypeVar("_M", bound=BaseModel)
_T = TypeVar("_T")
_SHORT: Final = 16_384  # bytes or characters of a request that is worked on in the event loop


async def off_loop(size: int, work: Callable[[], _T]) -> _T:
    """Return the result of work on so many bytes or characters; much of it is done in a thread, so that other requests go on."""
    return work() if size <= _SHORT else await asyncio.to_thread(work)


def body_of(kind: type[_M]) -> Callable[[Request], Awaitable[_M]]:
    """Return a dependency that reads a JSON body. FastAPI's own reading would stop all other requests while it parses."""

    def parse(body: bytes) -> _M:
        try:
            # not `model_validate_json`, each of whose errors copies what it is about: an object with a text of 60 MB, say
            return kind.model_validate(from_json(body, cache_strings="keys"))
        except ValidationError as error:
            raise input_error(error, within="body") from None
        except ValueError as error:
            reason = "nested too deeply" if "recursion limit" in str(error) else error
            raise InputError(f"body: not JSON: {reason}") from None

    async def read(request: Request) -> _M:
        body = await request.body()
        return await off_loop(len(body), lambda: parse(body))

    return read


def described(kind: type[BaseModel]) -> dict[str, Any]:
    """Return the `openapi_extra` of a route whose body `body_of` reads."""
    schema = {"content": {"application/json": {"schema": kind.model_json_schema()}}}
    return {"requestBody": {**schema, "required": True}}
