"""Requests for changes, on record: who asked which API for what, from where, and what came of it. No bodies."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from triforge.access.callers import Caller
from triforge.errors import TriforgeError
from triforge.store.database import Database
from triforge.store.tables import AuditRow

# Who is refused must not be able to fill the disk: of what is refused at the gate so many a minute and key are written
# (all strangers are one), and the next row says how many were not.
REFUSED_A_MINUTE: Final = 60
_UNKNOWN_CALLER: Final = Caller()
_log = logging.getLogger(__name__)


class RequestRecord:
    """Writes one row a request."""

    def __init__(
        self, database: Database, service: str, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._database = database
        self._service = service
        self._clock = clock
        self._minute = 0
        self._refused: Counter[str] = Counter()
        self._unwritten = 0

    async def write(
        self, who: Caller | None, route: str, path: str, *, address: str, status: int, refused: bool = False,
    ) -> None:  # fmt: skip
        """Put a request on record; a failed write keeps nobody from their answer. `refused`: at the gate, see `REFUSED_A_MINUTE`."""
        if refused and not self._may_write_refusal("" if who is None else who.key_id or who.name):
            return
        detail = {"unwritten": self._unwritten} if self._unwritten else {}
        self._unwritten = 0
        known = who or _UNKNOWN_CALLER
        row = AuditRow(
            at=self._clock(), by=known.name, action=route[:120], subject=_text(path)[:300], reason="", detail=detail,
            tenant=known.tenant if who else "", key_id=known.key_id, service=self._service,
            address=_text(address)[:64], status=status,
        )  # fmt: skip
        try:
            await asyncio.to_thread(self._add, row)
        except TriforgeError as error:
            _log.error("a request is not on record: %s %s by %r, status %d: %s",
                       route, _text(path), known.name, status, error.detail)  # fmt: skip

    def _add(self, row: AuditRow) -> None:
        with self._database.write() as session:
            session.add(row)

    def _may_write_refusal(self, key: str) -> bool:
        minute = int(self._clock() // 60)
        if minute != self._minute:
            self._minute = minute
            self._refused.clear()
        self._refused[key] += 1
        if self._refused[key] > REFUSED_A_MINUTE:
            self._unwritten += 1
            return False
        return True


def _text(given: str) -> str:
    """What came from outside, without what a terminal or a database would choke on."""
    return "".join(letter if letter.isprintable() else "?" for letter in given)
