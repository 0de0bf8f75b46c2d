"""Who asks, what an API wants of them, and what they may see.

Who asks stands in a context variable while an API works on a request, so what reads and writes rows can narrow itself.
Outside of a request, in a worker or in the orchestrator, nobody asks and everything is seen.
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
# What a route asks for: nothing, the key of the session that its path names, a key of that scope or a higher one, an admin key
# of the tenant `operator`, or the secret that the deployment's own services share. The secret opens every route but those of
# sessions.
Wanted = Literal["public", "session", "read", "submit", "admin", "operator", "service"]

SCOPES: Final[tuple[KeyScope, ...]] = get_args(KeyScope)  # each may do what those before it may
DEFAULT: Final = "default"  # the tenant of everything that was made without keys
OPERATOR: Final = "operator"  # its keys see all tenants


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a route asks for; requests that change anything which lasts are put on record.

    Where a route wants a `session`, or takes its key as well (`or_session`), the route itself checks that key.
    """

    wants: Wanted
    changes: bool = False
    or_session: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks.

    Attributes:
        name: of the key; empty where nobody is asked for one.
        everything: whether the caller sees what belongs to others.
        scope: what the caller may; `service` may everything.
        rate: requests a minute of the tenant; None is no bound.
    """

    name: str = ""
    key_id: str = ""
    tenant: str = DEFAULT
    everything: bool = False
    scope: KeyScope | Literal["service"] = "service"
    rate: int | None = None

    def sees(self, tenant: str) -> bool:
        """Whether what belongs to a tenant exists for this caller."""
        return self.everything or self.tenant == tenant


NOBODY: Final = Caller(everything=True)  # outside of requests, and where no keys are asked for

_caller: ContextVar[Caller] = ContextVar("caller", default=NOBODY)


def caller() -> Caller:
    """Who asks for what is being done now."""
    return _caller.get()


@contextlib.contextmanager
def asked_by(who: Caller) -> Iterator[None]:
    """Work for a caller."""
    token = _caller.set(who)
    try:
        yield
    finally:
        _caller.reset(token)


def own(column: InstrumentedAttribute[Any]) -> list[ColumnElement[bool]]:
    """The condition that leaves the caller's own rows: none for who sees everything. `column` holds tenants."""
    who = caller()
    return [] if who.everything else [column == who.tenant]
