"""A deployment that asks for keys, for tests: one key a scope and tenant, the services' secret, and a clock to turn."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from triforge.access.gate import Gate, KeyBook, Limiter
from triforge.access.keys import KeyStore
from triforge.access.requests import RequestRecord
from triforge.store.database import Database, open_database
from triforge.web.guard import Entrance

SECRET = "the-services-know-it-and-nobody-else"


@functools.cache
def _template() -> Path:
    """An empty database at head, made once a process: migrations take longer than these tests."""
    folder = Path(tempfile.mkdtemp(prefix="triforge-test-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    open_database(f"sqlite:///{folder}/empty.sqlite").close()
    return folder / "empty.sqlite"


def fresh(folder: Path) -> Database:
    """An empty database of one's own."""
    shutil.copy(_template(), folder / "store.sqlite")
    return Database(f"sqlite:///{folder}/store.sqlite")


@dataclass
class Clock:
    """Stands until it is turned."""

    now: float = field(default_factory=time.time)

    def __call__(self) -> float:
        return self.now


class Locks:
    """Keys by tenant and scope; made when first asked for.

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
        """The text of a key."""
        if (tenant, scope) not in self._texts:
            key, text = self.store.create(f"{tenant} {scope}", scope=scope, tenant=tenant)
            self._texts[tenant, scope], self.ids[tenant, scope] = text, key.id
        return self._texts[tenant, scope]

    def headers(self, scope: str, tenant: str = "default") -> dict[str, str]:
        """What such a caller sends; `nobody` sends nothing, `service` the secret."""
        if scope == "nobody":
            return {}
        text = SECRET if scope == "service" else self.key(scope, tenant)
        return {"Authorization": f"Bearer {text}"}

    def entrance(self, service: str = "env_adapter", limiter: Limiter | None = None) -> Entrance:
        """The entrance of a service."""
        book = KeyBook(self.store, clock=self.clock)
        gate = Gate(book, service_secret=SECRET, limiter=limiter, clock=self.clock)
        record = RequestRecord(self.database, service, clock=self.clock)
        return Entrance(gate=gate, record=record)
