"""The server of one family: HTTP for one shared session, and a WebSocket for each client with a session of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import uvicorn
from fastapi import FastAPI, WebSocket, WebSocketDisconnect
from pydantic import BaseModel, ConfigDict

from services.env_adapter.openenv.session import (
    EpisodeState,
    Session,
    Tasks,
    TextAction,
    TextObservation,
)
from triforge import __version__
from triforge.access.exposure import is_loopback
from triforge.environments import registry
from triforge.environments.rows import object_of, read_params
from triforge.errors import (
    ConfigError,
    EnvError,
    InputError,
    TooLargeError,
    TriforgeError,
    install_command,
)
from triforge.json_text import require_parsable
from triforge.types import Params
from triforge.web.app import install
from triforge.web.limits import MEBIBYTE, Bounds
from triforge.web.origins import OriginPolicy
from triforge.web.server import config_of

_INVALID_REQUEST: Final = -32600  # JSON-RPC
_FULL, _IDLE, _NO_TEXT = 1013, 1001, 1003  # closing codes: try again later, going away, no text
_MESSAGE: Final = 2 * MEBIBYTE  # bytes of a message; a task of a pool has one at most
_SCHEMAS: Final[dict[str, type[BaseModel]]] = {
    "action": TextAction,
    "observation": TextObservation,
    "state": EpisodeState,
}


class StepBody(BaseModel):
    """The body of OpenEnv's step request."""

    model_config = ConfigDict(extra="allow")

    action: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Served:
    """The tasks that a server plays, their options, and its description for `/metadata`."""

    tasks: Tasks
    options: Params
    description: str
    version: str
    sessions: int = 64  # WebSockets at a time; the server refuses further ones
    idle_s: float = (
        900.0  # seconds without a message, until a WebSocket is closed and its episode ended
    )
    origins: OriginPolicy = field(default_factory=OriginPolicy)


def create_app(*, served: Served) -> FastAPI:
    """Make the ASGI app."""
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
    async def session(client: WebSocket) -> None:
        nonlocal taken
        await client.accept()
        if taken >= served.sessions:
            await _close(client, _FULL, f"all {served.sessions} sessions are taken (--sessions)")
            return
        taken += 1
        try:
            await _serve_client(client, Session(served.tasks, served.options), served.idle_s)
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


async def _serve_client(client: WebSocket, session: Session, idle_s: float) -> None:
    """Answer the messages of one client in order until it leaves."""
    try:
        while True:
            async with asyncio.timeout(idle_s):
                message = await client.receive()
            if message["type"] == "websocket.disconnect":
                return
            text = message.get("text")
            if text is None:
                await _close(client, _NO_TEXT, "a binary frame; messages are JSON in text frames")
                return
            reply = await _reply(session, text)
            if reply is None:
                await client.close()
                return
            await client.send_text(json.dumps(reply))
    except TimeoutError:
        await _close(client, _IDLE, f"no message for {idle_s:g} s (--idle)")
    except WebSocketDisconnect:
        return
    finally:
        await session.close()


async def _close(client: WebSocket, code: int, reason: str) -> None:
    """Send the reason and close the connection, unless the client has left."""
    kind = "CAPACITY_REACHED" if code == _FULL else "SESSION_ERROR"
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        await client.send_text(json.dumps(_error(kind, reason)))
        await client.close(code, reason)


async def _reply(session: Session, text: str) -> dict[str, Any] | None:
    """Return the answer to a message; None for the message `close`."""
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
    except Exception as error:  # noqa: BLE001 (an environment may raise anything)
        return _error("EXECUTION_ERROR", f"{type(error).__name__}: {error}")
    if kind == "state":
        return {"type": "state", "data": session.state()}
    return None if kind == "close" else _error("UNKNOWN_TYPE", f"unknown message type {kind!r}")


def _error(code: str, message: str) -> dict[str, Any]:
    return {"type": "error", "data": {"code": code, "message": message}}


def serve(
    name: str,
    *,
    host: str,
    port: int,
    tasks: str,
    count: int,
    seed: int,
    generate: str,
    options: str,
    sessions: int,
    idle: float,
) -> int:
    """Serve a family until it is stopped, after its address is printed. Arguments: see `triforge env serve --help`."""
    family = registry.family(name)
    if find_spec("wsproto") is None:
        raise ConfigError(
            f"serving needs wsproto, which is not installed: {install_command('openenv')}"
        )
    if sessions < 1 or idle <= 0:
        raise InputError(
            f"--sessions was {sessions} and --idle {idle:g}, expected at least 1 and more than 0"
        )
    play = object_of(options, "--options")
    family.make(play)
    params = read_params(Path(tasks)) if tasks else None
    if params is None:
        params = family.generate(count=count, seed=seed, options=object_of(generate, "--generate"))
    if not params:
        raise InputError("no task to serve: the file is empty, or --count is 0")
    about = registry.about(family)
    served = Served(
        tasks=Tasks(family, params),
        options=play,
        description=about.what if about else name,
        version=__version__,
        sessions=sessions,
        idle_s=idle,
        origins=OriginPolicy(hosts=frozenset() if is_loopback(host) else None),
    )
    server = uvicorn.Server(config_of(create_app(served=served), host, port, ws="wsproto"))
    with socket.create_server((host, port)) as bound:
        address = f"http://{host}:{bound.getsockname()[1]}"
        print(f"{name}: {len(served.tasks)} tasks at {address}", flush=True)  # noqa: T201 (a command's output)
        asyncio.run(server.serve(sockets=[bound]))
    return 0
