"""The guard at a service's API: asks the gate about every request, and puts requests for changes on record.

The `RULES` of a service say what each of its routes asks for. Where keys are asked for, a route of which nothing is said
exists for the deployment's own services only, and `tests/contract/test_access.py` fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from triforge.access.callers import Caller, Rule, Wanted, asked_by
from triforge.access.gate import HEADER, SERVICE, Gate, demand_not_newer, make_gate
from triforge.access.requests import RequestRecord
from triforge.access.sessions import key_of, split
from triforge.broker.buckets import Buckets
from triforge.config import Settings
from triforge.errors import NotFoundError
from triforge.store.database import Database
from triforge.telemetry.asgi import unnamed
from triforge.web.description import extend
from triforge.web.origins import OriginPolicy, policy_of
from triforge.web.pages import DOCS
from triforge.web.problems import OWN, response_to

TENANT_HEADER: Final = "Triforge-Tenant"
PUBLIC: Final = Rule(wants="public")
# The description of the API and its pages, and what probes and Prometheus ask.
_OPEN: Final = {*OWN, *DOCS, "/openapi.json"}
_UNDECLARED: Final = Rule(wants="read")  # and then nobody but a service comes further
_CLIENT_GONE: Final = 499  # nobody heard an answer


class Rules:
    """What each route of a service asks for, by method and path template: `POST /v1/pools/{pool}/pause`."""

    def __init__(self, rules: Mapping[str, Rule]) -> None:
        self.rules = dict(rules)
        exact_first = sorted(rules, key=lambda route: "{" in route)
        split = ((route, *route.split(" ", 1)) for route in exact_first)
        self._patterns = [(route, method, compile_path(path)[0]) for route, method, path in split]

    def of(self, method: str, path: str) -> tuple[str, Rule]:
        """The route that a request is for, and what it asks for; no route if none is declared."""
        method = "GET" if method == "HEAD" else method
        if method == "GET" and path in _OPEN:
            return f"GET {path}", PUBLIC
        for route, wanted, pattern in self._patterns:
            if wanted == method and pattern.match(path):
                return route, self.rules[route]
        return "", _UNDECLARED


class Guard:
    """ASGI middleware: lets in who may, and says who asks to everything behind it. Without a `record` none is kept."""

    def __init__(
        self, app: ASGIApp, *, gate: Gate, rules: Rules, record: RequestRecord | None = None
    ) -> None:
        self._app = app
        self._gate = gate
        self._rules = rules
        self._record = record

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            if scope["type"] == "websocket" and self._gate.asks:
                await send({"type": "websocket.close", "code": 1008})  # no service speaks it
                return
            await self._app(scope, receive, send)
            return
        route, rule = self._rules.of(scope["method"], scope["path"])
        note = self._record if rule.changes else None
        who: Caller | None = None
        try:
            wants = _wanted(scope, rule)
            who = await self._identify(scope, wants)
            await self._gate.demand(who, wants)
            if not route and self._gate.asks and who != SERVICE:
                raise NotFoundError(f"{scope['method']} {scope['path']}: there is no such route")
        except Exception as error:  # noqa: BLE001 - outside of the framework's own handlers
            response = await response_to(error)
            if note is not None:
                await note.write(
                    who, route, scope["path"], address=_address(scope), status=response.status_code, refused=True
                )  # fmt: skip
            await response(scope, receive, send)
            return
        if self._gate.asks and who.scope != "service":
            scope = unnamed(scope)
        with asked_by(who):
            if note is None:
                await self._app(scope, receive, send)
            else:
                await self._noted(note, who, route, scope, receive, send)

    async def _identify(self, scope: Scope, wants: Wanted) -> Caller:
        headers = Headers(scope=scope)
        authorization = headers.get("authorization", "").encode("latin-1")
        if wants != "public" and not self._gate.is_service(authorization):
            demand_not_newer(headers.get(HEADER, ""))  # services are brought up to date together
        return await self._gate.identify(
            authorization, tenant=headers.get(TENANT_HEADER, ""), public=wants == "public"
        )

    async def _noted(
        self, record: RequestRecord, who: Caller, route: str, scope: Scope, receive: Receive, send: Send
    ) -> None:  # fmt: skip
        """Let it be answered, and write the record before anybody hears how it ended."""
        written = False

        async def write(status: int) -> None:
            nonlocal written
            if not written:
                written = True
                path, address = scope["path"], _address(scope)
                await record.write(who, route, path, address=address, status=status)

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                await write(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, answer)
        except Exception:
            await write(HTTPStatus.INTERNAL_SERVER_ERROR)  # what the framework answers past us
            raise
        await write(_CLIENT_GONE)


def _wanted(scope: Scope, rule: Rule) -> Wanted:
    """What a route asks for here and now: nothing where it checks the key of a session itself."""
    if rule.or_session:
        key = key_of(Headers(scope=scope).get("authorization", ""))
        return "public" if split(key) else rule.wants
    return "public" if rule.wants == "session" else rule.wants


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


@dataclass(frozen=True, kw_only=True)
class Entrance:
    """How a service is entered, by itself by everybody but pages of others."""

    gate: Gate = field(default_factory=lambda: Gate(None))
    record: RequestRecord | None = None
    origins: OriginPolicy = field(default_factory=OriginPolicy)


def entrance_of(settings: Settings, service: str, database: Database | None = None) -> Entrance:
    """The entrance of a service, by the deployment's settings; ConfigError if strangers could ask or the secret is missing.

    A service without a `database` opens it where keys are asked for, and leaves its schema alone.
    """
    if database is None and settings.keyed:
        database = Database(settings.database_url)
    limiter = Buckets(settings.redis_url) if settings.keyed else None
    return Entrance(
        gate=make_gate(settings, database, limiter),
        record=None if database is None else RequestRecord(database, service),
        origins=policy_of(settings),
    )


def guard(app: FastAPI, rules: Mapping[str, Rule], entrance: Entrance) -> Rules:
    """Set a guard before an app whose routes are all there, and say in the app's description what it asks for.

    Call it after `install`: what is added last stands outermost.
    """
    found = Rules(rules)
    app.add_middleware(Guard, gate=entrance.gate, rules=found, record=entrance.record)
    allowed = entrance.origins.origins
    if allowed:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=sorted(allowed),
            allow_methods=["GET", "POST", "PATCH", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "Idempotency-Key", "If-Match", HEADER],
            expose_headers=["ETag", "Location", "Retry-After"],
        )
    if entrance.gate.asks:
        _describe(app, rules)
    return found


def _describe(app: FastAPI, rules: Mapping[str, Rule]) -> None:
    """Say in the app's description which key a route asks for, and that it may be refused."""

    def with_keys(document: dict[str, Any]) -> dict[str, Any]:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        for path, item in document["paths"].items():
            for method, operation in item.items():
                rule = rules.get(f"{method.upper()} {path}", PUBLIC)
                if rule.wants != "public":
                    operation["security"] = [{"key": []}]
                    operation["x-triforge-scope"] = rule.wants
                    _refusals(operation["responses"])
        return document

    extend(app, with_keys)


def _refusals(responses: dict[str, Any]) -> None:
    problem: dict[str, Any] = responses.get("503", {})
    for status in (400, 401, 403, 429):
        said = responses.get(str(status), {"description": HTTPStatus(status).phrase})
        responses[str(status)] = {**problem, **said}
