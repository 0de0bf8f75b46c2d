"""What is told on streams, typed."""

from __future__ import annotations

import time
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from triforge.broker.connection import STREAM_LENGTH, Connection
from triforge.broker.names import (
    EVENTS_STREAM,
    JUDGED_STREAM,
    WEIGHTS_STREAM,
    batches_stream,
)
from triforge.telemetry import tracing
from triforge.types import Event, Message, TrainBatch, TrainedRole, WeightsReady

_M = TypeVar("_M", bound=Message)
_PAGE: Final = 1000  # entries of a stream that one read brings


class Entry(str):
    """The id of a stream's entry.

    Attributes:
        above: the `traceparent` of who wrote it; empty where no traces are recorded.
    """

    above: str = ""

    @classmethod
    def of(cls, entry: str, fields: dict[str, str]) -> Entry:
        """An entry as it was read."""
        found = cls(entry)
        found.above = fields.get(tracing.PARENT, "")
        return found


class Streams(Connection):
    """Judged groups, batches, weights and events. An entry's id says where a reader stands."""

    async def _add(self, stream: str, fields: dict[str, str]) -> None:
        flat = (part for pair in fields.items() for part in pair)
        await self._ask("XADD", stream, "MAXLEN", "~", STREAM_LENGTH, "*", *flat)

    async def _read(
        self, stream: str, after: str, block_s: float, count: int = _PAGE
    ) -> list[tuple[str, dict[str, str]]]:
        block = max(1, int(block_s * 1000))
        reply = await self._call(self._redis.xread({stream: after}, count=count, block=block))
        return [(entry, fields) for _, entries in reply or [] for entry, fields in entries]

    async def last_id(self, stream: str) -> str:
        """Id of the newest entry of a stream, `0` when it is empty."""
        newest = await self._call(self._redis.xrevrange(stream, count=1))
        return str(newest[0][0]) if newest else "0"

    async def read_judged(self, after: str, *, block_s: float = 1.0) -> list[tuple[str, str]]:
        """(entry id, group id) of groups announced after `after`; waits up to `block_s`."""
        entries = await self._read(JUDGED_STREAM, after, block_s)
        return [(entry, fields.get("group_id", "")) for entry, fields in entries]

    async def announce_batch(self, batch: TrainBatch) -> None:
        """Hand a batch to the learner of its role."""
        above = tracing.parent()
        along = {tracing.PARENT: above} if above else {}
        await self._add(batches_stream(batch.role), {"json": batch.model_dump_json(), **along})

    async def read_batches(
        self, role: TrainedRole, after: str, *, block_s: float = 1.0
    ) -> list[tuple[Entry, TrainBatch | None]]:
        """Batches announced after `after`, None for an entry that is no batch; waits up to `block_s`."""
        entries = await self._read(batches_stream(role), after, block_s)
        return [
            (Entry.of(entry, fields), _readable(TrainBatch, fields)) for entry, fields in entries
        ]

    async def announce_weights(self, ready: WeightsReady) -> None:
        """Tell the orchestrator that a weight version is published."""
        await self._add(WEIGHTS_STREAM, {"json": ready.model_dump_json()})

    async def read_weights(
        self, after: str, *, block_s: float = 1.0
    ) -> list[tuple[str, WeightsReady | None]]:
        """Weight versions announced after `after`, None for an entry that announces none; waits up to `block_s`."""
        entries = await self._read(WEIGHTS_STREAM, after, block_s)
        return [(entry, _readable(WeightsReady, fields)) for entry, fields in entries]

    async def emit(
        self, kind: str, *, run_id: str = "", step: int | None = None, **data: Any
    ) -> None:
        """Put an event on the event stream."""
        event = Event(kind=kind, run_id=run_id, step=step, at=time.time(), data=data)
        await self._add(EVENTS_STREAM, {"json": event.model_dump_json()})

    async def read_events(
        self, after: str, *, block_s: float = 1.0, run_id: str = ""
    ) -> list[tuple[str, Event]]:
        """(entry id, event) after `after`, of one run or of all; waits up to `block_s`.

        Events of other runs, and entries that are no events, are dropped. An empty answer means that the whole stream up to now holds none, but does not
        move the reader: to skip what was looked through, use the id of `last_id` from before the call.
        """
        while True:
            entries = await self._read(EVENTS_STREAM, after, block_s, count=_PAGE)
            events = [(entry, _readable(Event, fields)) for entry, fields in entries]
            found = [
                (entry, event)
                for entry, event in events
                if event is not None and run_id in ("", event.run_id)
            ]
            if found or len(entries) < _PAGE:
                return found
            after = entries[-1][0]


def _readable(kind: type[_M], fields: dict[str, str]) -> _M | None:
    try:
        return kind.model_validate_json(fields.get("json", ""))
    except ValidationError:
        return None
