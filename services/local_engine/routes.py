"""All routes but /generate: control, weights, adapters, and what serves. Names and answers are SGLang's."""

from __future__ import annotations

import asyncio
import time
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from services.local_engine.engine import Engine, Swapped
from services.local_engine.generate import generate
from services.local_engine.request import LARGE, Body, read, read_json
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


class _Load(Body):
    lora_name: str
    lora_path: str


class _Unload(Body):
    lora_name: str | None = None


def _engine(request: Request) -> Engine:
    engine: Engine = request.app.state.engine
    return engine


def _updates(request: Request) -> Updates:
    updates: Updates = request.app.state.updates
    return updates


# ---- control ----


async def _pause_generation(request: Request) -> Response:
    await _engine(request).pause((await read(request, _Pause)).mode)
    return JSONResponse({"message": "Generation is paused.", "status": "ok"})


async def _continue_generation(request: Request) -> Response:
    await _engine(request).resume()
    return JSONResponse({"message": "Generation goes on.", "status": "ok"})


async def _release_memory_occupation(request: Request) -> Response:
    """All of it: tags are not taken."""
    await read(request, Body)
    await _engine(request).release_memory()
    return JSONResponse(None)


async def _resume_memory_occupation(request: Request) -> Response:
    await read(request, Body)
    await _engine(request).resume_memory()
    return JSONResponse(None)


async def _abort_request(request: Request) -> Response:
    """One request by `rid`, or all with `abort_all`. A rid that nobody has is no error."""
    body = await read(request, _Abort)
    if body.rid is None and not body.abort_all:
        raise InputError("rid is missing; expected the id of a request, or abort_all true")
    await _engine(request).abort(None if body.abort_all else body.rid)
    return Response()


async def _flush_cache(request: Request) -> Response:
    if await _engine(request).flush():
        return PlainTextResponse("Cache flushed.\n")
    return PlainTextResponse("Flush cache failed.\n", 400)


# ---- weights ----


def _success(message: str, **more: Any) -> Response:
    return JSONResponse({"success": True, "message": message, **more})


def _outcome(body: WeightUpdate, swapped: Swapped | None, **more: Any) -> Response:
    """Answer an update. As in SGLang a cache that could not be flushed is a failure although the weights are new."""
    if swapped is not None and not swapped.flushed and body.flush_cache:
        return JSONResponse({"success": False, "message": _NOT_FLUSHED, **more}, 400)
    if body.weight_version is not None:
        return _success(f"The weights are those of version {body.weight_version}.", **more)
    return _success("The weights were taken.", **more)


async def _update_weights_from_disk(request: Request) -> Response:
    body = await read(request, _FromDisk)
    swapped = await _updates(request).from_disk(Path(body.model_path), body.weight_version)
    return _outcome(body, swapped, num_paused_requests=swapped.running)


async def _begin_weight_update(request: Request) -> Response:
    await read(request, WeightUpdate)
    await _updates(request).begin()
    return _success("The session is open.")


async def _end_weight_update(request: Request) -> Response:
    await _updates(request).end()
    return _success("The session is closed.")


async def _update_weights_from_distributed(request: Request) -> Response:
    body = await read_json(request, most=LARGE)  # names the tensors of a bucket
    return _outcome(*await _updates(request).take_broadcast(body))


async def _init_weights_update_group(request: Request) -> Response:
    body = await read(request, JoinGroup)
    await _updates(request).join(body)
    return _success(f"Group {body.group_name} was joined.")


async def _destroy_weights_update_group(request: Request) -> Response:
    name = (await read(request, _Leave)).group_name
    await _updates(request).leave(name)
    return _success(f"Group {name} was left.")


async def _update_weight_version(request: Request) -> Response:
    """Another name for the same weights."""
    body, engine = await read(request, _Rename), _engine(request)
    if body.abort_all_requests:
        await engine.abort(None)
    await engine.rename(body.new_version)
    message = f"The weights are called version {body.new_version}."
    return _success(message, new_version=body.new_version)


async def _get_weights_by_name(request: Request) -> Response:
    """The first rows of what serves, as numbers."""
    body = await read(request, _ByName)
    return JSONResponse(await _engine(request).rows(body.name, body.truncate_size))


# ---- adapters ----


def _loaded(request: Request, error: str | None) -> Response:
    loaded = {name: str(adapter.path) for name, adapter in _engine(request).adapters.items()}
    body = {"success": error is None, "error_message": error, "loaded_adapters": loaded}
    return JSONResponse(body, 200 if error is None else 400)


async def _load_lora_adapter(request: Request) -> Response:
    """Requests may name it as their `lora_path` from then on."""
    engine, error = _engine(request), None
    try:
        body = await read(request, _Load)
        adapter = await asyncio.to_thread(engine.model.read_adapter, Path(body.lora_path))
        if engine.adapters.setdefault(body.lora_name, adapter) is not adapter:
            error = f"adapter {body.lora_name!r} is loaded already; unload it first"
    except (InputError, WeightsError) as refusal:
        error = refusal.detail
    return _loaded(request, error)


async def _unload_lora_adapter(request: Request) -> Response:
    """Requests that use it go on with it."""
    name = (await read(request, _Unload)).lora_name
    found = _engine(request).adapters.pop(name or "", None)
    return _loaded(request, f"adapter {name!r} is not loaded" if found is None else None)


# ---- what serves ----


async def _ready(request: Request) -> Response:
    """200 while new requests are taken, 503 while the engine shuts down. Generates nothing."""
    return Response(status_code=200 if _engine(request).ready else 503)


async def _model_info(request: Request) -> Response:
    engine = _engine(request)
    found = {
        "model_path": str(engine.folder),
        "served_model_name": request.app.state.served_name,
        "tokenizer_path": str(engine.codec.file.parent),
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": engine.version,
        "load_format": "auto",
        "reasoning_parser": None,
        "tool_call_parser": None,
        "disaggregation_mode": "null",
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "model_type": engine.config.get("model_type"),
        "architectures": engine.config.get("architectures"),
    }
    return JSONResponse(found)


async def _server_info(request: Request) -> Response:
    engine = _engine(request)
    found = {
        "engine": "triforge-local-engine",
        "version": version_of("triforge"),
        "model_path": str(engine.folder),
        "served_model_name": request.app.state.served_name,
        "weight_version": engine.version,
        "tp_size": 1,
        "enable_memory_saver": True,
        "max_running_requests": engine.limits.max_running,
        "max_total_tokens": engine.limits.max_total_tokens,
        "context_length": engine.longest,
        "dtype": str(engine.model.dtype).removeprefix("torch."),
        "is_paused": engine.paused,
        "internal_states": [engine.load()],
    }
    return JSONResponse(found)


async def _models(request: Request) -> Response:
    engine, name = _engine(request), request.app.state.served_name
    card = {
        "id": name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "triforge",
        "root": name,
        "parent": None,
        "max_model_len": engine.longest,
    }
    adapters = [
        card | {"id": adapter, "root": str(a.path), "parent": name, "max_model_len": None}
        for adapter, a in engine.adapters.items()
    ]
    return JSONResponse({"object": "list", "data": [card, *adapters]})


_POSTED = (
    _pause_generation,
    _continue_generation,
    _release_memory_occupation,
    _resume_memory_occupation,
    _abort_request,
    _update_weights_from_disk,
    _begin_weight_update,
    _end_weight_update,
    _update_weights_from_distributed,
    _init_weights_update_group,
    _destroy_weights_update_group,
    _update_weight_version,
    _load_lora_adapter,
    _unload_lora_adapter,
)
_CONTROL = [
    *(Route(f"/{answer.__name__[1:]}", answer, methods=["POST"]) for answer in _POSTED),
    Route("/flush_cache", _flush_cache, methods=["GET", "POST"]),
    Route("/get_weights_by_name", _get_weights_by_name, methods=["GET", "POST"]),
]
CONTROL_PATHS = frozenset(route.path for route in _CONTROL)
ROUTES = [
    Route("/generate", generate, methods=["POST", "PUT"]),
    Route("/v1/models", _models),
    Route("/model_info", _model_info),
    Route("/server_info", _server_info),
    Route("/ready", _ready),
    Route("/health", _ready),
    *_CONTROL,
]
