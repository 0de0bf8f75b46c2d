"""The ASGI application: dispatch, keys, JSON in and out, errors.

It is written against plain ASGI: with a small model one decode step takes a few hundred microseconds, and the layers of
a web framework would take as long for every request.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import aclosing
from typing import Any

from services.local_engine import chat, routes
from services.local_engine.engine import Engine
from services.local_engine.sequence import Sequence, wire_result
from triforge.errors import (
    InputError,
    PolicyError,
    TriforgeError,
    UnavailableError,
    WeightsError,
)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_Command = Callable[[Engine, dict[str, Any]], Awaitable[dict[str, Any]]]

_log = logging.getLogger(__name__)
_MAX_BODY = 256 * 1024 * 1024
_JSON = (b"content-type", b"application/json")

_COMMANDS: dict[str, _Command] = {
    "/pause_generation": routes.pause_generation,
    "/continue_generation": routes.continue_generation,
    "/abort_request": routes.abort_request,
    "/update_weights_from_disk": routes.update_weights_from_disk,
    "/update_weight_version": routes.update_weight_version,
    "/weights_checker": routes.weights_checker,
}
_OPEN = frozenset({"/health", "/ready", "/health_generate", "/ping"})
_ADMIN = frozenset({*_COMMANDS, "/flush_cache"})


class GoneError(Exception):
    """The client hung up before its answer was ready."""


class App:
    """The application.

    Args:
        engine: a started engine.
        served_name: model name that /v1/models reports.
        api_key: if set, needed on the routes that generate and inform.
        admin_api_key: if set, needed on the routes that pause, abort, flush and update; else `api_key` is.
    """

    def __init__(
        self,
        engine: Engine,
        served_name: str,
        api_key: str | None = None,
        admin_api_key: str | None = None,
    ) -> None:
        self._engine = engine
        self._served_name = served_name
        self._api_key = api_key
        self._admin_api_key = admin_api_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event of ASGI."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if not self._allowed(scope):
                await _answer(send, 401, {"error": "Unauthorized"})
                return
            await self._dispatch(scope["path"], scope["method"], receive, send)
        except GoneError:
            return
        except WeightsError as error:
            body = {"success": False, "message": error.detail, "num_paused_requests": 0}
            await _answer(send, 400, body)
        except UnavailableError as error:
            retry = str(int(error.retry_after_s or 1)).encode()
            await _answer(send, 503, _error(error.detail, 503), ((b"retry-after", retry),))
        except PolicyError as error:
            await _answer(send, 500, _error(error.detail, 500))
        except TriforgeError as error:
            await _answer(send, 400, _error(error.detail, 400))
        except Exception as error:  # noqa: BLE001 - the last line before the web server
            _log.exception("request to %s failed", scope["path"])
            await _answer(send, 500, _error(f"{type(error).__name__}: {error}", 500))

    def _allowed(self, scope: Scope) -> bool:
        """SGLang's rule: control routes take the admin key where there is one, all others the API key."""
        path = scope["path"]
        key = self._api_key
        if path in _ADMIN and self._admin_api_key is not None:
            key = self._admin_api_key
        if key is None or path in _OPEN:
            return True
        given = next((v for k, v in scope["headers"] if k == b"authorization"), b"")
        return hmac.compare_digest(given, b"Bearer " + key.encode())

    async def _dispatch(self, path: str, method: str, receive: Receive, send: Send) -> None:
        if path == "/generate" and method in ("POST", "PUT"):
            await self._generate(receive, send)
        elif path in _COMMANDS and method == "POST":
            body = await _read_json(receive)
            if not isinstance(body, dict):
                body = {}
            await _answer(send, 200, await _COMMANDS[path](self._engine, body))
        elif path == "/v1/chat/completions" and method == "POST":
            await self._chat(receive, send)
        elif path == "/flush_cache" and method in ("GET", "POST"):
            flushed = await self._engine.flush()
            text = b"Cache flushed." if flushed else b"Flush cache failed."
            await _send(send, 200 if flushed else 400, text, ((b"content-type", b"text/plain"),))
        elif path == "/ready":
            await _answer(send, 200, {"status": "ok"})
        elif path in _OPEN:
            await _send(send, 200, b"")
        elif method == "GET" and (found := self._inform(path)) is not None:
            await _answer(send, 200, found)
        else:
            await _answer(send, 404, {"detail": "Not Found"})

    def _inform(self, path: str) -> dict[str, Any] | None:
        if path in ("/model_info", "/get_model_info"):
            return routes.model_info(self._engine)
        if path in ("/server_info", "/get_server_info"):
            return routes.server_info(self._engine, self._served_name)
        if path == "/v1/models":
            return chat.model_list(self._engine, self._served_name)
        return None

    async def _generate(self, receive: Receive, send: Send) -> None:
        engine = self._engine
        sequences, many, stream = routes.parse_generate(engine, await _read_json(receive))
        if not stream:
            await _unless_gone(engine.generate(sequences), receive)
            _raise_if_failed(sequences)
            results = [wire_result(seq, engine.codec, engine.version) for seq in sequences]
            await _answer(send, 200, results if many else results[0])
            return
        updates = engine.stream(sequences)
        sent: list[Any] = [(0, True)] * len(sequences)

        async def events() -> None:
            async with aclosing(updates):
                await _start_events(send)
                async for _ in updates:
                    for i, seq in enumerate(sequences):
                        result = wire_result(seq, engine.codec, engine.version)
                        finish = result["meta_info"]["finish_reason"]
                        state = (len(result["output_ids"]), finish is None)
                        if state != sent[i]:
                            sent[i] = state
                            await _event(send, {**result, "index": i} if many else result)
            await _end_events(send)

        await _unless_gone(events(), receive)

    async def _chat(self, receive: Receive, send: Send) -> None:
        engine = self._engine
        sequences, request = chat.parse_chat(engine, await _read_json(receive), self._served_name)
        if not request.stream:
            await _unless_gone(engine.generate(sequences), receive)
            _raise_if_failed(sequences)
            await _answer(send, 200, chat.completion(engine, request, sequences))
            return

        updates = engine.stream(sequences)

        async def events() -> None:
            async with aclosing(updates):
                await _start_events(send)
                deltas = chat.Deltas(engine, request, sequences)
                async for _ in updates:
                    for chunk in deltas.take():
                        await _event(send, chunk)
            await _end_events(send)

        await _unless_gone(events(), receive)


def create_app(
    *,
    engine: Engine,
    served_name: str,
    api_key: str | None = None,
    admin_api_key: str | None = None,
) -> App:
    """The application around a started engine; see `App`."""
    return App(engine, served_name, api_key, admin_api_key)


def _raise_if_failed(sequences: list[Sequence]) -> None:
    """An abort that carries a status is the request's failure, not a result."""
    for seq in sequences:
        finish = seq.finish or {}
        status = finish.get("status_code")
        if status is not None:
            raise (InputError if status == 400 else PolicyError)(str(finish.get("message")))


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def _read_json(receive: Receive) -> Any:
    """The JSON body of a request; an empty body is {}.

    Raises:
        InputError: it is not JSON.
        GoneError: the client hung up.
    """
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise GoneError
        part = message.get("body", b"")
        size += len(part)
        if size > _MAX_BODY:
            raise InputError(f"the body is larger than {_MAX_BODY} bytes")
        parts.append(part)
        if not message.get("more_body"):
            break
    body = parts[0] if len(parts) == 1 else b"".join(parts)
    try:
        return json.loads(body) if body else {}
    except ValueError as error:
        raise InputError(f"the body is not valid JSON: {error}") from error


async def _unless_gone(work: Awaitable[None], receive: Receive) -> None:
    """Finish `work`, or cancel it when the client hangs up.

    Raises:
        GoneError: the client hung up.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_hung_up(receive))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise GoneError
        task.result()
    finally:
        for each in (task, watcher):
            if not each.done():
                each.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _error(message: str, status: int) -> dict[str, Any]:
    return {"error": {"message": message, "code": status}}


async def _answer(
    send: Send, status: int, body: Any, headers: tuple[tuple[bytes, bytes], ...] = ()
) -> None:
    await _send(send, status, json.dumps(body).encode(), (_JSON, *headers))


async def _send(
    send: Send, status: int, body: bytes, headers: tuple[tuple[bytes, bytes], ...] = ()
) -> None:
    length = (b"content-length", str(len(body)).encode())
    start = {"type": "http.response.start", "status": status, "headers": [*headers, length]}
    await send(start)
    await send({"type": "http.response.body", "body": body})


async def _start_events(send: Send) -> None:
    headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def _event(send: Send, data: Any) -> None:
    body = b"data: " + json.dumps(data).encode() + b"\n\n"
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _end_events(send: Send) -> None:
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
