"""The access checks of a service's API.

The `RULES` of a service state the requirement of each route. Where keys are required, a route without a rule is open to the
deployment's own services only, and `tests/contract/test_access.py` fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from triforge.access.callers import Caller, Requirement, Rule, acting_for
from triforge.access.gate import SERVICE, VERSION_HEADER, Gate, require_served_version
from triforge.access.keys import key_of, parse_key
from triforge.config import Settings
from triforge.errors import NotFoundError
from triforge.store.database import Database
from triforge.telemetry.asgi import unnamed
from triforge.web.app import OWN
from triforge.web.description import extend, operations
from triforge.web.origins import OriginPolicy, policy_of
from triforge.web.pages import DOCS
from triforge.web.problems import response_to

_TENANT_HEADER: Final = "Triforge-Tenant"
PUBLIC: Final = Rule(requires="public")
PUBLIC_PATHS: Final = {*OWN, *DOCS, "/openapi.json"}
_UNDECLARED: Final = Rule(requires="read")  # and then only services come further


class Rules:
    """The rules of a service's routes, by method and path template: `POST /v1/pools/{pool}/pause`."""

    def __init__(self, rules: Mapping[str, Rule]) -> None:
        self.rules = dict(rules)
        exact_first = sorted(rules, key=lambda route: "{" in route)
        split = ((route, *route.split(" ", 1)) for route in exact_first)
        self._patterns = [(route, method, compile_path(path)[0]) for route, method, path in split]

    def of(self, method: str, path: str) -> tuple[str, Rule]:
        """Return the route of a request and its rule; the route is empty if none is declared."""
        method = "GET" if method == "HEAD" else method
        if method == "GET" and path in PUBLIC_PATHS:
            return f"GET {path}", PUBLIC
        for route, its_method, pattern in self._patterns:
            if its_method == method and pattern.match(path):
                return route, self.rules[route]
        return "", _UNDECLARED

    def methods(self, path: str) -> list[str]:
        """Return the methods of the declared routes of a path."""
        return sorted({method for _, method, pattern in self._patterns if pattern.match(path)})


class Guard:
    """ASGI middleware that checks each request and sets its caller for everything inside."""

    def __init__(self, app: ASGIApp, *, gate: Gate, rules: Rules) -> None:
        self._app = app
        self._gate = gate
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one event."""
        if scope["type"] != "http":
            if scope["type"] == "websocket" and self._gate.keyed:
                await send({"type": "websocket.close", "code": 1008})  # no service speaks it
                return
            await self._app(scope, receive, send)
            return
        try:
            caller = await self._admit(scope)
        except Exception as error:  # noqa: BLE001 - outside of the framework's own handlers
            response = await response_to(error)
            await response(scope, receive, send)
            return
        if self._gate.keyed and caller.scope != "service":
            scope = unnamed(scope)
        with acting_for(caller):
            await self._app(scope, receive, send)

    async def _admit(self, scope: Scope) -> Caller:
        """Return the caller of a request that its rule admits."""
        route, rule = self._rules.of(scope["method"], scope["path"])
        headers = Headers(scope=scope)
        required = _requirement(headers, rule)
        authorization = headers.get("authorization", "").encode("latin-1")
        if required != "public" and not self._gate.is_service(authorization):
            require_served_version(
                headers.get(VERSION_HEADER, "")
            )  # services are upgraded together
        caller = await self._gate.identify(
            authorization, tenant=headers.get(_TENANT_HEADER, ""), public=required == "public"
        )
        self._gate.authorize(caller, required)
        if not route and self._gate.keyed and caller != SERVICE:
            if allowed := self._rules.methods(scope["path"]):
                raise HTTPException(405, headers={"Allow": ", ".join(allowed)})
            raise NotFoundError(f"{scope['method']} {scope['path']}: there is no such route")
        return caller


def _requirement(headers: Headers, rule: Rule) -> Requirement:
    """Return the requirement here: nothing where the route itself checks the key of a session."""
    if rule.or_session:
        session = parse_key("tfs", key_of(headers.get("authorization", "")))
        return "public" if session else rule.requires
    return "public" if rule.requires == "session" else rule.requires


@dataclass(frozen=True, kw_only=True)
class Entrance:
    """The checks in front of a service; by default only foreign pages are refused."""

    gate: Gate = field(default_factory=lambda: Gate(None))
    origins: OriginPolicy = field(default_factory=OriginPolicy)


def entrance_of(settings: Settings, database: Database | None = None) -> Entrance:
    """Return the entrance of a service from the deployment's settings. Raises as `require_safe`.

    A service without a `database` opens the deployment's where keys are required, and leaves its schema unchanged.
    """
    if database is None and settings.keyed:
        database = Database(settings.database_url)
    return Entrance(gate=Gate.from_settings(settings, database), origins=policy_of(settings))


def guard(app: FastAPI, rules: Mapping[str, Rule], entrance: Entrance) -> Rules:
    """Put the checks in front of an app whose routes are all there, and describe them.

    Call it after `install`: the middleware that is added last runs first.
    """
    compiled = Rules(rules)
    app.add_middleware(Guard, gate=entrance.gate, rules=compiled)
    allowed = entrance.origins.origins
    if allowed:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=sorted(allowed),
            allow_methods=["GET", "POST", "PATCH", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "Idempotency-Key", VERSION_HEADER],
            expose_headers=["Location", "Retry-After"],
        )
    if entrance.gate.keyed:
        _describe(app, rules)
    return compiled


def _describe(app: FastAPI, rules: Mapping[str, Rule]) -> None:
    """Describe the key that each route requires."""

    def with_keys(document: dict[str, Any]) -> dict[str, Any]:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        for method, path, operation in operations(document):
            rule = rules.get(f"{method} {path}", PUBLIC)
            if rule.requires != "public":
                operation["security"] = [{"key": []}]
                operation["x-triforge-scope"] = rule.requires
        return document

    extend(app, with_keys)
