"""The ASGI application: which path does what, who may, and how errors leave."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from services.local_engine import adapter_routes, control, information, weight_routes
from services.local_engine.asgi import Exchange, GoneError, Receive, Scope, Send
from services.local_engine.chat import chat_completions
from services.local_engine.completions import completions
from services.local_engine.engine import Engine
from services.local_engine.generate import generate
from services.local_engine.keys import Keys
from services.local_engine.request import UnknownParameterError
from services.local_engine.service import Service
from services.local_engine.updates import Updates
from triforge.errors import PolicyError, TriforgeError, UnavailableError
from triforge.telemetry import tracing
from triforge.telemetry.asgi import take_headers

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Route:
    """What a path does. `bare` errors are {"error": {"message"}}, the others have OpenAI's fields."""

    serve: Callable[[Service, Exchange], Awaitable[None]]
    methods: tuple[str, ...] = ("GET",)
    admin: bool = False
    bare: bool = False


_POST, _BOTH = ("POST",), ("GET", "POST")
_ROUTES = {
    "/generate": _Route(generate, ("POST", "PUT"), bare=True),
    "/v1/chat/completions": _Route(chat_completions, _POST),
    "/v1/completions": _Route(completions, _POST),
    "/v1/models": _Route(information.models),
    "/v1/loads": _Route(information.loads),
    "/model_info": _Route(information.model_info),
    "/get_model_info": _Route(information.model_info),
    "/server_info": _Route(information.server_info),
    "/get_server_info": _Route(information.server_info),
    "/ready": _Route(information.ready),
    "/health": _Route(information.health),
    "/health_generate": _Route(information.health_generate),
    "/ping": _Route(information.health),
    "/pause_generation": _Route(control.pause_generation, _POST, admin=True),
    "/continue_generation": _Route(control.continue_generation, _POST, admin=True),
    "/abort_request": _Route(control.abort_request, _POST, admin=True),
    "/flush_cache": _Route(control.flush_cache, _BOTH, admin=True),
    "/get_weights_by_name": _Route(weight_routes.get_weights_by_name, _BOTH, admin=True, bare=True),
    "/weights_checker": _Route(weight_routes.weights_checker, _BOTH, admin=True),
    **{
        f"/{serve.__name__}": _Route(serve, _POST, admin=True)
        for serve in (
            weight_routes.update_weights_from_disk,
            weight_routes.update_weights_from_tensor,
            weight_routes.update_weights_from_distributed,
            weight_routes.begin_weight_update,
            weight_routes.end_weight_update,
            weight_routes.init_weights_update_group,
            weight_routes.destroy_weights_update_group,
            weight_routes.update_weight_version,
            adapter_routes.load_lora_adapter,
            adapter_routes.unload_lora_adapter,
        )
    },
}
_MODEL = _Route(information.model)
_TRACED = ("/generate", "/v1/chat/completions", "/v1/completions")


class App:
    """The application.

    Args:
        service: around a started engine.
        keys: who may call what.
    """

    def __init__(self, service: Service, keys: Keys) -> None:
        self._service = service
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event of ASGI."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "http":
            above = take_headers(scope["headers"])
            exchange = Exchange(scope, receive, send)
            if not tracing.is_on() or exchange.path not in _TRACED:
                await self._serve(scope, exchange)
                return
            with tracing.served(f"{exchange.method} {exchange.path}", above):
                await self._serve(scope, exchange)

    async def _serve(self, scope: Scope, exchange: Exchange) -> None:
        path = exchange.path
        route = _ROUTES.get(path) or (_MODEL if path.startswith("/v1/models/") else None)
        admin = route is not None and route.admin
        if not self._keys.allow(path, scope["headers"], method=exchange.method, admin=admin):
            await exchange.answer(401, {"error": "Unauthorized"})
        elif route is None:
            await exchange.answer(404, {"detail": "Not Found"})
        elif exchange.method not in route.methods:
            await exchange.answer(405, {"detail": "Method Not Allowed"})
        else:
            await self._dispatch(route, exchange)

    async def _dispatch(self, route: _Route, exchange: Exchange) -> None:
        try:
            await route.serve(self._service, exchange)
        except GoneError:
            return
        except UnavailableError as error:
            retry = str(int(error.retry_after_s or 1)).encode()
            body = _problem(error.detail, error.status)
            await exchange.answer(error.status, body, ((b"retry-after", retry),))
        except PolicyError as error:
            await exchange.answer(500, _problem(error.detail, 500))
        except TriforgeError as error:
            await exchange.answer(400, _refusal(error, bare=route.bare))
        except Exception as error:
            _log.exception("request to %s failed", exchange.path)
            if exchange.started:
                raise
            await exchange.answer(500, _problem(f"{type(error).__name__}: {error}", 500))


def _refusal(error: TriforgeError, *, bare: bool) -> dict[str, Any]:
    if not bare:
        return _problem(error.detail, 400)
    if isinstance(error, UnknownParameterError):
        return {"error": error.detail}
    return {"error": {"message": error.detail}}


_KINDS = {400: "BadRequest", 429: "TooManyRequests", 500: "InternalServerError", 503: "503"}


def _problem(message: str, status: int) -> dict[str, Any]:
    return {
        "object": "error",
        "message": message,
        "type": _KINDS[status],
        "param": None,
        "code": status,
    }


def create_app(
    *,
    engine: Engine,
    served_name: str,
    api_key: str | None = None,
    admin_api_key: str | None = None,
    cache_report: bool = False,
) -> App:
    """The application around a started engine.

    Args:
        engine: the engine.
        served_name: the model's name in /v1/models.
        api_key: needed on the routes that generate and inform, if set.
        admin_api_key: needed on the routes that control, if set; else `api_key` is.
        cache_report: whether the OpenAI routes count cached tokens.
    """
    service = Service(engine, Updates(engine), served_name, cache_report)
    return App(service, Keys(api_key, admin_api_key))


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
