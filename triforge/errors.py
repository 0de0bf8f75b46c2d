"""One small tree of errors, named by the border that was crossed.

Failure is data: every error has a `kind` that can be counted, a sentence for a person, a `retryable` flag for the
program, and the HTTP status under which it leaves a service. `triforge.types.ErrorInfo` is its form between processes.
"""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path
from typing import Any, Final, Literal


def install_command(*extras: str) -> str:
    """What installs extras of ours. The name is published nowhere yet, so the command is one for a clone's folder."""
    return f".venv/bin/pip install -c constraints.txt -e '.[{','.join(extras)}]'"


class TriforgeError(Exception):
    """Base of all errors of triforge; what is said of a class stands behind its bases.

    Args:
        detail: what was given, what was expected and which option to turn, in one sentence.
        retry_after_s: seconds after which a retry makes sense, or None; by itself what is usual for the class.
        problems: further sentences, one a bad row or field, when there are several.
    """

    kind: str = "internal"
    status: int = 500
    retryable: bool = False
    retry_after_s: float | None = None

    def __init_subclass__(cls, **said: Any) -> None:
        for name, value in said.items():
            setattr(cls, name, value)

    def __init__(
        self,
        detail: str,
        *,
        retry_after_s: float | Literal["usual"] | None = "usual",
        problems: tuple[str, ...] = (),
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.problems = problems
        if retry_after_s != "usual":
            self.retry_after_s = retry_after_s


class ConfigError(TriforgeError, ValueError, kind="config", status=422):
    """A config names an unknown field or an impossible combination."""


class UnauthorizedError(ConfigError, kind="unauthorized", status=401):
    """An API asks for a key and got none, or one that opens nothing."""


class ForbiddenError(ConfigError, kind="forbidden", status=403):
    """The key is good, but not for this."""


class VersionError(ConfigError, kind="version", status=400):
    """A client is newer than the service that it asks."""


class InputError(TriforgeError, ValueError, kind="input", status=422):
    """A request or an uploaded row is malformed; nothing was stored."""


class ContextFullError(InputError, kind="context_full"):
    """A prompt has outgrown what the model takes. After an episode's first turn that is the policy's own doing."""


class NotFoundError(TriforgeError, LookupError, kind="not_found", status=404):
    """The named pool, task, run or version does not exist."""


class ConflictError(TriforgeError, kind="conflict", status=409):
    """The request contradicts the present state (a name is taken, a run is not running)."""


class PausedError(TriforgeError, kind="paused", status=409, retryable=True):
    """People have paused the pool; the same request will succeed when they resume it."""


class PreconditionError(TriforgeError, kind="precondition", status=412):
    """The thing was changed since the caller looked at it (If-Match does not hold); look again, then decide."""


class TooLargeError(TriforgeError, kind="too_large", status=413):
    """The body of a request is larger than the service takes; nothing was stored."""


class MediaTypeError(InputError, kind="media_type", status=415):
    """The body of a request is not of a media type that the route takes."""


class UnavailableError(
    TriforgeError, kind="unavailable", status=503, retryable=True, retry_after_s=2.0
):
    """A service that this one needs does not answer now; the same request may succeed later."""


class BusyError(UnavailableError, kind="busy", status=429):
    """A service lives but has as much to do as it takes on; nothing was begun, ask again after `retry_after_s`."""


class PolicyError(TriforgeError, kind="policy", status=502, retryable=True):
    """The policy service or an engine behind it answered with an error."""


class WeightsError(TriforgeError, kind="weights", status=422):
    """A weight folder is missing, truncated, of the wrong shape or not what its manifest says."""


class EnvError(TriforgeError, kind="environment", status=502, retryable=True):
    """An environment raised, hung past its deadline or broke its contract."""


class ObservationError(EnvError, kind="malformed_observation", retryable=False):
    """What an environment showed is not what its protocol declares; it would show it again."""


class SandboxError(TriforgeError, kind="sandbox", status=503, retryable=True):
    """The sandbox for programs of a model could not start or died. It says nothing about the program."""

    def __init__(self, detail: str, *, retryable: bool = True, **more: Any) -> None:
        super().__init__(detail, **more)
        self.retryable = retryable


class RewardError(TriforgeError, kind="reward", status=502, retryable=True):
    """The reward service could not judge."""


class TrainerError(TriforgeError, kind="trainer"):
    """A learner could not take its step."""


class StorageError(TriforgeError, kind="storage", status=507):
    """The database or the artifact store failed (disk full, no permission, corrupt file)."""


_ROOT: Final = Path(__file__).parents[1]
_OURS: Final = (
    *(f"{_ROOT / part}/" for part in ("triforge", "environments", "methods", "services")),
    "<",
)
_INSTALLED: Final = "site-packages"


def own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames of somebody's own code, of installed packages if there is no other."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_OURS) and not _standard(frame.filename)
    ]  # fmt: skip
    return [frame for frame in frames if _INSTALLED not in frame.filename] or frames


def raised_at(error: BaseException) -> str:
    """` (FILE:LINE)` of the last of its own frames; empty without one."""
    own = own_frames(error)
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""


def _standard(file: str) -> bool:
    return file.startswith(f"{sysconfig.get_path('stdlib')}/") and _INSTALLED not in file
