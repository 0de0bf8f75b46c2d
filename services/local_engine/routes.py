"""All routes but /generate: control, weights, adapters, and the state. Names and answers are SGLang's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from services.local_engine.engine import Engine, Swapped
from services.local_engine.generate import generate
from services.local_engine.request import LARGE, SMALL, Body, read
from services.local_engine.updates import JoinGroup, Updates, WeightUpdate
from triforge.errors import InputError, WeightsError

_NOT_FLUSHED = (
    "The weights were replaced, but the cache was not flushed: requests are held in place. Send flush_cache false with "
    "a pause in_place, or pause with retract."
)


class _Pause(Body):
    mode: Literal["abort", "retract", "in_place"] = "abort"


class _Abort(Body):
    rid: Annotated[str, Field(min_length=1)] | None = None
    abort_all: bool = False


class _FromDisk(WeightUpdate):
    model_path: str


class _Leave(Body):
    group_name: str = "weight_update_group"


class _Rename(Body):
    new_version: str
    abort_all_requests: bool = True


class _ByName(Body):
    name: str
    truncate_size: Annotated[int, Field(ge=0)] = 100


class _Bucket(Body, extra="allow"):
    """A body that is checked inside of the update session, so that a wrong one ends the session."""


class _Adapter(Body):
    lora_name: str = ""
    lora_path: str = ""


class Routes:
    """The routes of an engine. Each handler returns the JSON of its answer; names of handlers are those of routes.

    `served_name` is the model's name in /v1/models.
    """

    def __init__(self, engine: Engine, served_name: str) -> None:
        self._engine, self._updates, self._name = engine, Updates(engine), served_name

    # ---- control ----

    async def pause_generation(self, body: _Pause) -> Any:
        await self._engine.pause(body.mode)
        return {"message": "Generation is paused.", "status": "ok"}

    async def continue_generation(self, _: Body) -> Any:
        await self._engine.resume()
        return {"message": "Generation goes on.", "status": "ok"}

    async def release_memory_occupation(self, _: Body) -> Any:
        return await self._engine.call(
            self._engine.scheduler.release
        )  # all of it: tags are not read

    async def resume_memory_occupation(self, _: Body) -> Any:
        return await self._engine.call(self._engine.scheduler.take_back)

    async def abort_request(self, body: _Abort) -> Any:
        if body.rid is None and not body.abort_all:
            raise InputError("rid is missing; expected the id of a request, or abort_all true")
        await self._engine.abort(None if body.abort_all else body.rid)  # an unknown rid is no error
        return Response()

    async def flush_cache(self, _: Body) -> Any:
        if await self._engine.call(self._engine.scheduler.flush):
            return PlainTextResponse("Cache flushed.\n")
        return PlainTextResponse("Flush cache failed.\n", 400)

    # ---- weights ----

    async def update_weights_from_disk(self, body: _FromDisk) -> Any:
        swapped = await self._updates.from_disk(Path(body.model_path), body.weight_version)
        return _outcome(body, swapped, num_paused_requests=swapped.running)

    async def begin_weight_update(self, _: WeightUpdate) -> Any:
        await self._updates.begin()
        return _success("The session is open.")

    async def end_weight_update(self, _: Body) -> Any:
        await self._updates.end()
        return _success("The session is closed.")

    async def update_weights_from_distributed(self, body: _Bucket) -> Any:
        return _outcome(*await self._updates.take_broadcast(body.model_extra))

    async def init_weights_update_group(self, body: JoinGroup) -> Any:
        await self._updates.join(body)
        return _success(f"Group {body.group_name} was joined.")

    async def destroy_weights_update_group(self, body: _Leave) -> Any:
        await self._updates.leave(body.group_name)
        return _success(f"Group {body.group_name} was left.")

    async def update_weight_version(self, body: _Rename) -> Any:
        if body.abort_all_requests:
            await self._engine.abort(None)
        await self._engine.call(self._engine.scheduler.rename, body.new_version)
        message = f"The weights are called version {body.new_version}."
        return _success(message, new_version=body.new_version)

    async def get_weights_by_name(self, body: _ByName) -> Any:
        rows = self._engine.scheduler.rows
        return await self._engine.call(rows, body.name, body.truncate_size)

    # ---- adapters ----

    async def load_lora_adapter(self, body: _Adapter) -> Any:
        name, error = body.lora_name, None
        try:
            if not (name and body.lora_path):
                raise InputError("lora_name or lora_path is missing")
            path = Path(body.lora_path)
            adapter = await asyncio.to_thread(self._engine.model.read_adapter, path)
            if self._engine.adapters.setdefault(name, adapter) is not adapter:
                error = f"adapter {name!r} is loaded already; unload it first"
        except (InputError, WeightsError) as refusal:
            error = refusal.detail
        return self._loaded(error)

    async def unload_lora_adapter(self, body: _Adapter) -> Any:
        # Requests that use it go on with it.
        adapter = self._engine.adapters.pop(body.lora_name, None)
        return self._loaded(None if adapter else f"adapter {body.lora_name!r} is not loaded")

    def _loaded(self, error: str | None) -> Any:
        loaded = {name: str(adapter.path) for name, adapter in self._engine.adapters.items()}
        body = {"success": error is None, "error_message": error, "loaded_adapters": loaded}
        return JSONResponse(body, 200 if error is None else 400)

    # ---- state ----

    async def ready(self, _: Body) -> Any:
        return Response(status_code=200 if self._engine.ready else 503)

    async def model_info(self, _: Body) -> Any:
        engine = self._engine
        return {
            "model_path": str(engine.folder),
            "served_model_name": self._name,
            "tokenizer_path": str(engine.codec.file.parent),
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": engine.scheduler.version,
            "load_format": "auto",
            "reasoning_parser": None,
            "tool_call_parser": None,
            "disaggregation_mode": "null",
            "has_image_understanding": False,
            "has_audio_understanding": False,
            "model_type": engine.config.get("model_type"),
            "architectures": engine.config.get("architectures"),
        }

    async def server_info(self, _: Body) -> Any:
        engine, scheduler = self._engine, self._engine.scheduler
        running, waiting = len(scheduler.running), len(scheduler.waiting)
        return {
            "engine": "triforge-local-engine",
            "version": version_of("triforge"),
            "model_path": str(engine.folder),
            "served_model_name": self._name,
            "weight_version": scheduler.version,
            "tp_size": 1,
            "enable_memory_saver": True,
            "max_running_requests": engine.limits.max_running,
            "max_total_tokens": engine.limits.max_total_tokens,
            "context_length": engine.longest,
            "dtype": str(engine.model.dtype).removeprefix("torch."),
            "is_paused": scheduler.paused,
            "internal_states": [{"num_running_reqs": running, "num_waiting_reqs": waiting}],
        }

    async def models(self, _: Body) -> Any:
        card = {
            "id": self._name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "triforge",
            "root": self._name,
            "parent": None,
            "max_model_len": self._engine.longest,
        }
        adapters = [
            card | {"id": name, "root": str(a.path), "parent": self._name, "max_model_len": None}
            for name, a in self._engine.adapters.items()
        ]
        return {"object": "list", "data": [card, *adapters]}

    def all(self) -> list[Route]:
        """Return all routes, with /generate."""
        own = [
            _route(f"/{name}", getattr(self, name), _METHODS.get(name, ["POST"]))
            for name in CONTROL
        ]
        state = {"/v1/models": self.models, "/ready": self.ready, "/health": self.ready,
                 "/model_info": self.model_info, "/server_info": self.server_info}  # fmt: skip
        shown = [_route(path, handler, ["GET"]) for path, handler in state.items()]
        return [Route("/generate", generate, methods=["POST", "PUT"]), *own, *shown]


CONTROL = (
    "pause_generation", "continue_generation", "release_memory_occupation", "resume_memory_occupation",
    "abort_request", "update_weights_from_disk", "begin_weight_update", "end_weight_update",
    "update_weights_from_distributed", "init_weights_update_group", "destroy_weights_update_group",
    "update_weight_version", "load_lora_adapter", "unload_lora_adapter", "flush_cache", "get_weights_by_name",
)  # fmt: skip
_METHODS = {name: ["GET", "POST"] for name in ("flush_cache", "get_weights_by_name")}


def _route(path: str, handler: Callable[[Any], Awaitable[Any]], methods: list[str]) -> Route:
    """Read the body that a handler takes, and answer with its result."""
    (kind,) = (hint for name, hint in get_type_hints(handler).items() if name != "return")
    most = LARGE if kind is _Bucket else SMALL

    async def answer(request: Request) -> Response:
        result = await handler(await read(request, kind, most=most))
        return result if isinstance(result, Response) else JSONResponse(result)

    return Route(path, answer, methods=methods)


def _success(message: str, **more: Any) -> dict[str, Any]:
    return {"success": True, "message": message, **more}


def _outcome(body: WeightUpdate, swapped: Swapped | None, **more: Any) -> Any:
    """Answer an update. As in SGLang a cache that could not be flushed is a failure although the weights are new."""
    if swapped is not None and not swapped.flushed and body.flush_cache:
        return JSONResponse({"success": False, "message": _NOT_FLUSHED, **more}, 400)
    return _success(f"The weights were loaded, version {body.weight_version}.", **more)
