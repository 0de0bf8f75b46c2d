"""The caller of a request, what a route requires of a caller, and the rows that a caller sees.

The caller stands in a context variable while an API works on a request, so that readers and writers of rows can narrow
themselves. Outside of a request, in a worker or in the orchestrator, there is no caller and every row is visible.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement
    from sqlalchemy.orm import InstrumentedAttribute

KeyScope = Literal["read", "submit", "admin"]
# Nothing, the key of the session that the path names, a key of that scope or a higher one, an admin key of the tenant
# `operator`, or the secret that the deployment's own services share. The secret opens every route but those of sessions.
Requirement = Literal["public", "session", "read", "submit", "admin", "operator", "service"]

SCOPES: Final[tuple[KeyScope, ...]] = get_args(KeyScope)  # each includes those before it
DEFAULT: Final = "default"  # the tenant of everything that was made without keys
OPERATOR: Final = "operator"  # its keys see all tenants


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The requirement of a route.

    With `requires="session"` or `or_session` the route itself checks the key of the session.
    """

    requires: Requirement
    or_session: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The caller of a request.

    Attributes:
        name: of the key; empty where no keys are required.
        everything: whether the caller sees all tenants.
        scope: `service` includes every scope.
    """

    name: str = ""
    key_id: str = ""
    tenant: str = DEFAULT
    everything: bool = False
    scope: KeyScope | Literal["service"] = "service"

    def sees(self, tenant: str) -> bool:
        """Return whether rows of a tenant exist for this caller."""
        return self.everything or self.tenant == tenant


UNRESTRICTED: Final = Caller(everything=True)  # outside of requests, and where no keys are required

_caller: ContextVar[Caller] = ContextVar("caller", default=UNRESTRICTED)


def caller() -> Caller:
    """Return the caller of the request in work."""
    return _caller.get()


@contextlib.contextmanager
def acting_for(new: Caller) -> Iterator[None]:
    """Set the caller inside the block."""
    token = _caller.set(new)
    try:
        yield
    finally:
        _caller.reset(token)


def own(column: InstrumentedAttribute[Any]) -> list[ColumnElement[bool]]:
    """Return the conditions that keep the caller's rows; `column` holds tenants."""
    current = caller()
    return [] if current.everything else [column == current.tenant]
