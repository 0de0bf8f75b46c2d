"""The APIs of an OpenEnv server: HTTP for one shared session, a WebSocket for a session of one's own."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from typing import Any, Final

from fastapi import FastAPI, WebSocket, WebSocketDisconnect
from pydantic import BaseModel, ConfigDict

from services.env_adapter.openenv.session import (
    EpisodeState,
    Session,
    Tasks,
    TextAction,
    TextObservation,
)
from triforge.errors import EnvError, InputError, TooLargeError, TriforgeError
from triforge.json_text import require_parsable
from triforge.types import Params
from triforge.web.app import install
from triforge.web.limits import MEBIBYTE, Bounds
from triforge.web.origins import OriginPolicy

_INVALID_REQUEST: Final = -32600  # JSON-RPC
_FULL, _IDLE, _NO_TEXT = 1013, 1001, 1003  # a WebSocket's close: again later, going away, no text
_MESSAGE: Final = 2 * MEBIBYTE  # bytes of a message; a task of a pool has one at most
_SCHEMAS: Final[dict[str, type[BaseModel]]] = {
    "action": TextAction,
    "observation": TextObservation,
    "state": EpisodeState,
}


class StepBody(BaseModel):
    """OpenEnv's step request."""

    model_config = ConfigDict(extra="allow")

    action: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Served:
    """What a server plays and how, and how `/metadata` describes it."""

    tasks: Tasks
    options: Params
    description: str
    version: str
    sessions: int = 64  # WebSockets at a time; a further one is refused
    idle_s: float = 900.0  # without a message, then a WebSocket is closed, and its episode ended
    origins: OriginPolicy = field(default_factory=OriginPolicy)


def create_app(*, served: Served) -> FastAPI:
    """The ASGI app."""
    app = FastAPI(title=f"OpenEnv: {served.tasks.family.name}", version="1.0.0")
    install(app, bounds=Bounds(_MESSAGE), origins=served.origins)
    shared = Session(served.tasks, served.options)
    _add_descriptions(app, served)
    taken = 0

    @app.post("/reset")
    async def reset(body: dict[str, Any] | None = None) -> dict[str, Any]:
        return await shared.reset(body or {})

    @app.post("/step")
    async def step(body: StepBody) -> dict[str, Any]:
        return await shared.step(body.action)

    @app.get("/state")
    async def state() -> dict[str, Any]:
        return shared.state()

    @app.websocket("/ws")
    async def session(socket: WebSocket) -> None:
        nonlocal taken
        await socket.accept()
        if taken >= served.sessions:
            await _part(socket, _FULL, f"all {served.sessions} sessions are taken (--sessions)")
            return
        taken += 1
        try:
            await _serve_session(socket, Session(served.tasks, served.options), served.idle_s)
        finally:
            taken -= 1

    return app


def _add_descriptions(app: FastAPI, served: Served) -> None:
    @app.get("/schema")
    async def schema() -> dict[str, Any]:
        return {name: model.model_json_schema() for name, model in _SCHEMAS.items()}

    @app.get("/metadata")
    async def metadata() -> dict[str, Any]:
        name = served.tasks.family.name
        return {"name": name, "description": served.description, "version": served.version}

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "healthy"}

    @app.post("/mcp")
    async def mcp() -> dict[str, Any]:
        message = "this environment offers no tools; use /reset and /step, or /ws"
        error = {"code": _INVALID_REQUEST, "message": message}
        return {"jsonrpc": "2.0", "id": None, "error": error}


async def _serve_session(socket: WebSocket, session: Session, idle_s: float) -> None:
    """Answer one client's messages in turn until it goes; a message that fails is answered with an error."""
    try:
        while True:
            async with asyncio.timeout(idle_s):
                message = await socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            text = message.get("text")
            if text is None:
                await _part(socket, _NO_TEXT, "a binary frame; messages are JSON in text frames")
                return
            reply = await _reply(session, text)
            if reply is None:
                await socket.close()
                return
            await socket.send_text(json.dumps(reply))
    except TimeoutError:
        await _part(socket, _IDLE, f"no message for {idle_s:g} s (--idle)")
    except WebSocketDisconnect:
        return
    finally:
        await session.close()


async def _part(socket: WebSocket, code: int, why: str) -> None:
    """Say why, then hang up; a client that has gone already needs neither."""
    kind = "CAPACITY_REACHED" if code == _FULL else "SESSION_ERROR"
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        await socket.send_text(json.dumps(_error(kind, why)))
        await socket.close(code, why)


async def _reply(session: Session, text: str) -> dict[str, Any] | None:
    """The answer to a message; None when it says goodbye."""
    try:
        require_parsable(text.encode(errors="surrogatepass"))
        message = json.loads(text)
    except TooLargeError as error:
        return _error("VALIDATION_ERROR", error.detail)
    except (ValueError, RecursionError) as error:
        return _error("INVALID_JSON", f"not JSON: {error}")
    kind = message.get("type") if isinstance(message, dict) else None
    data = message.get("data", {}) if isinstance(message, dict) else None
    try:
        if kind == "reset" and isinstance(data, dict):
            return {"type": "observation", "data": await session.reset(data)}
        if kind == "step":
            return {"type": "observation", "data": await session.step(data)}
    except InputError as error:
        return _error("VALIDATION_ERROR", error.detail)
    except EnvError as error:
        return _error("EXECUTION_ERROR", error.detail)
    except TriforgeError as error:
        return _error("SESSION_ERROR", error.detail)
    except Exception as error:  # noqa: BLE001  an adapter may raise anything; its client shall know
        return _error("EXECUTION_ERROR", f"{type(error).__name__}: {error}")
    if kind == "state":
        return {"type": "state", "data": session.state()}
    return None if kind == "close" else _error("UNKNOWN_TYPE", f"unknown message type {kind!r}")


def _error(code: str, message: str) -> dict[str, Any]:
    return {"type": "error", "data": {"code": code, "message": message}}
