"""The work of a job: from the text in a queue to a coroutine, and its retries."""

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

# For jobs that meet a service that is away, or a store that refuses; `retries` bounds the latter.
RETRIES: Final = RetryPolicy(first_s=5.0, longest_s=60.0, retries=6)
_LOGGED = 200  # characters of an unreadable job in the log


@dataclass(frozen=True, slots=True)
class Job(Generic[_M]):
    """The work of one task name.

    An unreadable job is logged and dropped. A job that meets a service that is away is tried again until the service answers;
    one that a store refuses (a full disk may be freed, a damaged file may not) is tried again a few times. Every other error of
    ours is final and logged: the sender watches its jobs and sends them again. Unexpected errors are raised.
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
        """Return the seconds before the next try after so many earlier failures; None if there is none."""
        if isinstance(error, StorageError) and failures >= self.retries.retries:
            self._give_up(error)
            return None
        pause = self.retries.pause_s(failures + 1, error)
        self.log.warning("%s again in %.0f s: %s", self.name, pause, error.detail)
        return pause

    def _give_up(self, error: TriforgeError) -> None:
        self.log.error("gave up a job of %s: %s: %s", self.name, error.kind, error.detail)
