"""A deployment that asks for keys, for tests: a key for each scope and tenant, the services' secret, and a clock."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from triforge.access.gate import Gate, KeyCache
from triforge.access.keys import KeyStore
from triforge.store.database import Database, open_database
from triforge.web.guard import Entrance

SECRET = "known-to-the-services-and-to-no-client"


ORDER = ("none", "read", "submit", "admin")


def opens(scope: str, required: str) -> bool:
    """Whether a key of a scope opens what requires one; the services' secret opens everything."""
    if scope == "service":
        return True
    return required in ORDER and 0 < ORDER.index(required) <= ORDER.index(scope)


def fresh(folder: Path) -> Database:
    """Return an empty database in a folder."""
    return open_database(f"sqlite:///{folder}/store.sqlite")


@dataclass
class Clock:
    """A clock that stands still until a test sets it."""

    now: float = field(default_factory=time.time)

    def __call__(self) -> float:
        return self.now


class Locks:
    """Keys by tenant and scope, each made on first use.

    Args:
        database: at head.
    """

    def __init__(self, database: Database) -> None:
        self.clock = Clock()
        self.database = database
        self.store = KeyStore(database, clock=self.clock)
        self.ids: dict[tuple[str, str], str] = {}
        self._texts: dict[tuple[str, str], str] = {}

    def key(self, scope: str, tenant: str = "default") -> str:
        """Return the text of a key."""
        if (tenant, scope) not in self._texts:
            key, text = self.store.create(f"{tenant} {scope}", scope=scope, tenant=tenant)
            self._texts[tenant, scope], self.ids[tenant, scope] = text, key.id
        return self._texts[tenant, scope]

    def headers(self, scope: str, tenant: str = "default") -> dict[str, str]:
        """Return the headers of a caller; `none` sends no key, `service` the secret."""
        if scope == "none":
            return {}
        text = SECRET if scope == "service" else self.key(scope, tenant)
        return {"Authorization": f"Bearer {text}"}

    def entrance(self) -> Entrance:
        """Return the entrance of a service."""
        keys = KeyCache(self.store, clock=self.clock)
        return Entrance(gate=Gate(keys, service_secret=SECRET, clock=self.clock))
