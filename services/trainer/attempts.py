"""How often a learner has begun a batch without coming to an end of it.

A process that is killed by its batch (out of memory) cannot say so. It leaves a count beside its place in the stream,
written before the work, and the process after it reads the count.
"""

from __future__ import annotations

import json
import logging

from triforge.errors import TriforgeError
from triforge.store.artifacts import ArtifactStore
from triforge.types import TrainBatch, TrainedRole

log = logging.getLogger(__name__)

MOST = 3  # attempts a batch gets


class Attempts:
    """The count of one role; a batch takes the place of the one before it.

    A store that does not take or give the count never stops the learner: the batch then counts as begun once.

    Args:
        store: where the count lies.
        role: the model that is trained.
    """

    def __init__(self, store: ArtifactStore, role: TrainedRole) -> None:
        self._store = store
        self._name = f"checkpoints/attempts-{role}.json"

    def count(self, batch: TrainBatch) -> int:
        """Attempts at the batch that nobody has come back from."""
        try:
            if not self._store.exists(self._name):
                return 0
            noted = json.loads(self._store.read(self._name))
            return int(noted["count"]) if noted["batch_id"] == batch.batch_id else 0
        except (TriforgeError, ValueError, KeyError, TypeError) as error:
            log.warning("%s cannot be read: %s", self._name, error)
            return 0

    def begin(self, batch: TrainBatch) -> None:
        """Note one more attempt."""
        noted = {"batch_id": batch.batch_id, "count": self.count(batch) + 1}
        try:
            self._store.write(self._name, json.dumps(noted).encode())
        except TriforgeError as error:
            log.warning("the attempt is not noted: %s", error.detail)

    def clear(self) -> None:
        """The process has come to an end of the batch, or was told to stop: nothing counts against it."""
        try:
            self._store.delete(self._name)
        except TriforgeError as error:
            log.warning("the attempt stays noted: %s", error.detail)
