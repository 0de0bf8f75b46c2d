"""Weights out: a batch to each learner, the new version to each policy service, live only when it is proven to serve."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from triforge.broker import WEIGHTS_STREAM, Broker
from triforge.errors import TrainerError
from triforge.types import (
    Handover,
    TrainBatch,
    TrainedRole,
    WeightsReady,
    WeightsState,
    WeightsUpdate,
)

log = logging.getLogger(__name__)

_BLOCK_S = 0.5


class WeightsApi(Protocol):
    """The part of a policy service's client that the orchestrator needs."""

    async def weights(self) -> WeightsState:
        """What the service serves."""
        ...

    async def update_weights(self, update: WeightsUpdate) -> WeightsState:
        """Serve another version; returns when it is proven."""
        ...


@dataclass(frozen=True, slots=True)
class Published:
    """A version that serves, and what its learner reported."""

    ready: WeightsReady
    seconds: float


class Publisher:
    """Hands batches to learners and their weights to the policy services.

    Args:
        wire: streams.
        APIs: policy service of each trained role.
        check: awaited regularly; raises to abandon the wait (stop requested).
    """

    def __init__(
        self,
        broker: Broker,
        apis: Mapping[TrainedRole, WeightsApi],
        *,
        check: Callable[[], Awaitable[None]],
    ) -> None:
        self._broker = broker
        self._apis = apis
        self._check = check
        self._handovers: dict[str, Handover] = {}  # by folder, until it is served

    async def live(self, role: TrainedRole) -> WeightsState:
        """What the service serves now."""
        return await self._apis[role].weights()

    async def serve(self, role: TrainedRole, *, version: int, uri: str, digest: str = "") -> None:
        """Make a service serve a version; nothing happens when it serves it already."""
        state = await self._apis[role].weights()
        if state.version == version and state.uri == uri:
            return
        handover = self._handovers.pop(uri, None)
        await self._apis[role].update_weights(
            WeightsUpdate(version=version, uri=uri, digest=digest, handover=handover)
        )

    async def train(
        self, batches: list[TrainBatch], *, deadline_s: float
    ) -> dict[TrainedRole, Published]:
        """Let the learners of all batches take their step, at the same time, and wait for all.

        Raises:
            TrainerError: a learner failed, or did not answer within `deadline_s`.
        """
        cursor = await self._broker.last_id(WEIGHTS_STREAM)
        started = time.monotonic()
        for batch in batches:
            await self._broker.announce_batch(batch)
        waiting = {batch.role: batch for batch in batches}
        published: dict[TrainedRole, Published] = {}
        while waiting:
            await self._check()
            if time.monotonic() - started > deadline_s:
                raise TrainerError(
                    f"no weights from the learner of {', '.join(waiting)} after {deadline_s:.0f} s; is it running? "
                    "run.step_deadline_s sets the limit"
                )
            for entry, ready in await self._broker.read_weights(cursor, block_s=_BLOCK_S):
                cursor = entry
                if ready is None:
                    log.error("entry %s announces no weights: skipped", entry)
                    continue
                asked = waiting.get(ready.role)
                if asked is None or not _answers(ready, asked):
                    continue
                if ready.error is not None:
                    raise TrainerError(f"learner of {ready.role}: {ready.error.detail}")
                if ready.handover is not None:
                    self._handovers[ready.uri] = ready.handover
                published[ready.role] = Published(ready, time.monotonic() - started)
                del waiting[ready.role]
        return published


def _answers(ready: WeightsReady, batch: TrainBatch) -> bool:
    """Whether this is the answer to the batch, and not to an older one of the same step."""
    version = batch.version if ready.error else batch.version + 1
    return (ready.run_id, ready.step, ready.version) == (batch.run_id, batch.step, version)
