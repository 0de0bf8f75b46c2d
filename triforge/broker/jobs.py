"""From a queue to a coroutine: what a job's work is, how it is run, and when it is tried again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, TypeVar

from pydantic import ValidationError

from triforge.errors import StorageError, TriforgeError, UnavailableError
from triforge.retry import RetryPolicy
from triforge.telemetry import about, ids_of, tracing
from triforge.types import Message

_M = TypeVar("_M", bound=Message)

RETRIES: Final = RetryPolicy(first_s=5.0, longest_s=60.0, retries=6)
"""Of jobs that met a service that is away, or a store that refuses. `retries` bounds the latter."""

_LOGGED = 200  # characters of an unreadable job that the log shows


@dataclass(frozen=True, slots=True)
class Job(Generic[_M]):
    """The work of one task name.

    A job that cannot be read is logged and dropped: it never will be readable. One that meets a service that is away is tried
    again until that is back. So is one that a store refuses (a full disk may be freed), but only a few times: a damaged file
    refuses for ever. Every other error of ours is final and logged, for the sender watches its jobs and sends again.
    Unexpected errors are raised.
    """

    name: str
    kind: type[_M]
    work: Callable[[_M], Coroutine[Any, Any, None]]
    retries: RetryPolicy = RETRIES

    log: ClassVar[logging.Logger] = logging.getLogger(__name__)

    async def run(self, payload: str, headers: Mapping[str, Any]) -> None:
        """Do the job, inside the trace that `headers` name.

        Raises:
            UnavailableError: a service is away; see `pause_s`.
            StorageError: a store refuses, likewise.
        """
        try:
            message = self.kind.model_validate_json(payload)
        except ValidationError as error:
            self.log.error(
                "dropped a job of %s that is no %s: %s; it began with %r",
                self.name, self.kind.__name__, error.errors(include_url=False, include_input=False)[:3],
                str(payload)[:_LOGGED],
            )  # fmt: skip
            return
        parent = str(headers.get(tracing.PARENT) or "")
        with about(**ids_of(message)), tracing.served(f"{self.name} job", parent, "consumer"):
            try:
                await self.work(message)
            except (UnavailableError, StorageError):
                raise
            except TriforgeError as error:
                self._give_up(error)

    def pause_s(self, error: UnavailableError | StorageError, failures: int) -> float | None:
        """Seconds before the job is tried again after so many earlier failures; None when it is given up."""
        if isinstance(error, StorageError) and failures >= self.retries.retries:
            self._give_up(error)
            return None
        pause = self.retries.pause_s(failures + 1, error)
        self.log.warning("%s again in %.0f s: %s", self.name, pause, error.detail)
        return pause

    def _give_up(self, error: TriforgeError) -> None:
        self.log.error("gave up a job of %s: %s: %s", self.name, error.kind, error.detail)
