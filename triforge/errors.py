"""One small tree of errors, named by the border that was crossed.

Failure is data: every error has a `kind` that can be counted, a sentence for a person, a `retryable` flag for the
program, and the HTTP status under which it leaves a service. `triforge.types.ErrorInfo` is its form between processes.
"""

from __future__ import annotations


class TriforgeError(Exception):
    """Base of all errors of triforge.

    Args:
        detail: what was given, what was expected and which option to turn, in one sentence.
        retry_after_s: seconds after which a retry makes sense, or None.
        problems: further sentences, one a bad row or field, when there are several.
    """

    kind: str = "internal"
    status: int = 500
    retryable: bool = False

    def __init__(
        self, detail: str, *, retry_after_s: float | None = None, problems: tuple[str, ...] = ()
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.retry_after_s = retry_after_s
        self.problems = problems


class ConfigError(TriforgeError, ValueError):
    """A config names an unknown field or an impossible combination."""

    kind = "config"
    status = 422


class UnauthorizedError(ConfigError):
    """An API asks for a key and got none, or one that opens nothing."""

    kind = "unauthorized"
    status = 401


class ForbiddenError(ConfigError):
    """The key is good, but not for this."""

    kind = "forbidden"
    status = 403


class VersionError(ConfigError):
    """A client is newer than the service that it asks."""

    kind = "version"
    status = 400


class InputError(TriforgeError, ValueError):
    """A request or an uploaded row is malformed; nothing was stored."""

    kind = "input"
    status = 422


class ContextFullError(InputError):
    """A prompt has outgrown what the model takes. After an episode's first turn that is the policy's own doing."""

    kind = "context_full"


class NotFoundError(TriforgeError, LookupError):
    """The named pool, task, run or version does not exist."""

    kind = "not_found"
    status = 404


class ConflictError(TriforgeError):
    """The request contradicts the present state (a name is taken, a run is not running)."""

    kind = "conflict"
    status = 409


class PausedError(TriforgeError):
    """People have paused the pool; the same request will succeed when they resume it."""

    kind = "paused"
    status = 409
    retryable = True


class PreconditionError(TriforgeError):
    """The thing was changed since the caller looked at it (If-Match does not hold); look again, then decide."""

    kind = "precondition"
    status = 412


class TooLargeError(TriforgeError):
    """The body of a request is larger than the service takes; nothing was stored."""

    kind = "too_large"
    status = 413


class UnavailableError(TriforgeError):
    """A service that this one needs does not answer now; the same request may succeed later."""

    kind = "unavailable"
    status = 503
    retryable = True

    def __init__(
        self, detail: str, *, retry_after_s: float | None = 2.0, problems: tuple[str, ...] = ()
    ) -> None:
        super().__init__(detail, retry_after_s=retry_after_s, problems=problems)


class BusyError(UnavailableError):
    """A service lives but has as much to do as it takes on; nothing was begun, ask again after `retry_after_s`."""

    kind = "busy"
    status = 429


class RateError(BusyError):
    """A tenant asks more often than it may; ask again after `retry_after_s`."""

    kind = "rate"


class QuotaError(TriforgeError):
    """A tenant holds as much as it may; nothing was stored. Only giving something back or the operator helps."""

    kind = "quota"
    status = 429

    def __init__(
        self, detail: str, *, retry_after_s: float | None = 60.0, problems: tuple[str, ...] = ()
    ) -> None:
        super().__init__(detail, retry_after_s=retry_after_s, problems=problems)


class PolicyError(TriforgeError):
    """The policy service or an engine behind it answered with an error."""

    kind = "policy"
    status = 502
    retryable = True


class WeightsError(TriforgeError):
    """A weight folder is missing, truncated, of the wrong shape or not what its manifest says."""

    kind = "weights"
    status = 422


class EnvError(TriforgeError):
    """An environment raised, hung past its deadline or broke its contract."""

    kind = "environment"
    status = 502
    retryable = True


class SandboxError(TriforgeError):
    """The sandbox for programs of a model could not start or died. It says nothing about the program."""

    kind = "sandbox"
    status = 503
    retryable = True

    def __init__(
        self,
        detail: str,
        *,
        retryable: bool = True,
        retry_after_s: float | None = None,
        problems: tuple[str, ...] = (),
    ) -> None:
        super().__init__(detail, retry_after_s=retry_after_s, problems=problems)
        self.retryable = retryable


class RewardError(TriforgeError):
    """The reward service could not judge."""

    kind = "reward"
    status = 502
    retryable = True


class TrainerError(TriforgeError):
    """A learner could not take its step."""

    kind = "trainer"
    status = 500


class StorageError(TriforgeError):
    """The database or the artifact store failed (disk full, no permission, corrupt file)."""

    kind = "storage"
    status = 507
