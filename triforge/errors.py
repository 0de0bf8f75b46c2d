"""The errors of triforge.

Every error has a `kind` that can be counted, a sentence for a person, a `retryable` flag for the program, and the HTTP status
of its response. `triforge.types.ErrorInfo` is its form between processes.
"""

from __future__ import annotations

import sys
import sysconfig
import traceback
from pathlib import Path
from typing import Any, Final, Literal


def install_command(*extras: str) -> str:
    """Return the command that installs extras into this environment, from the clone if the package is one."""
    clone, here = Path(__file__).parents[1], Path.cwd()
    pip, pins = Path(sys.executable).with_name("pip"), clone / "constraints.txt"
    paths = (p.relative_to(here) if p.is_relative_to(here) else p for p in (pip, pins, clone))
    command, pins, clone = paths
    if not pins.is_file():  # pip takes the extras of what is installed; no index needs to have it
        return f"{command} install 'triforge[{','.join(extras)}]'"
    return f"{command} install -c {pins} -e '{clone}[{','.join(extras)}]'"


class TriforgeError(Exception):
    """Base of all errors of triforge; the properties of a class follow its bases.

    Args:
        detail: what was given, what was expected and which option mends it, in one sentence.
        retry_after_s: seconds after which to try again, or None; by default those of the class.
        problems: sentences about single rows or fields, when there are several.

    Attributes:
        raised: the exception of a user's code behind the error, as `raised_in` names it, to be counted; empty without one.
    """

    kind: str = "internal"
    status: int = 500
    retryable: bool = False
    raised: str = ""
    retry_after_s: float | None = None

    def __init_subclass__(cls, **properties: Any) -> None:
        for name, value in properties.items():
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
    """A config has an unknown field or an impossible combination."""


class UnauthorizedError(ConfigError, kind="unauthorized", status=401):
    """A request without a key, or with one that is not valid."""


class ForbiddenError(ConfigError, kind="forbidden", status=403):
    """A valid key without the right to this request."""


class VersionError(ConfigError, kind="version", status=400):
    """A client that is newer than the service."""


class InputError(TriforgeError, ValueError, kind="input", status=422):
    """A malformed request or uploaded row; nothing was stored."""


class ContextFullError(InputError, kind="context_full"):
    """A prompt that is longer than the model's context. After an episode's first turn the policy itself caused it."""


class NotFoundError(TriforgeError, LookupError, kind="not_found", status=404):
    """A pool, task, run or version that does not exist."""


class ConflictError(TriforgeError, kind="conflict", status=409):
    """A request that contradicts the state (a name is taken, a run is not running)."""


class PausedError(TriforgeError, kind="paused", status=409, retryable=True):
    """A pool that is paused; the same request will succeed when it is resumed."""


class TooLargeError(TriforgeError, kind="too_large", status=413):
    """A body that is larger than the route's limit; nothing was stored."""


class MediaTypeError(InputError, kind="media_type", status=415):
    """A body of a media type that the route does not accept."""


class UnavailableError(
    TriforgeError, kind="unavailable", status=503, retryable=True, retry_after_s=2.0
):
    """A service that does not answer now; the same request may succeed later."""


class BusyError(UnavailableError, kind="busy", status=429):
    """A service with too much work; nothing was begun, try again after `retry_after_s`."""


class PolicyError(TriforgeError, kind="policy", status=502, retryable=True):
    """An error of the policy service or of an engine."""


class WeightsError(TriforgeError, kind="weights", status=422):
    """A weight folder that is missing, truncated, of the wrong shape or different from its manifest."""


class EnvError(TriforgeError, kind="environment", status=502, retryable=True):
    """An environment that raised, exceeded its deadline or broke its contract."""


class ObservationError(EnvError, kind="malformed_observation", retryable=False):
    """An observation that does not follow the environment's protocol; a retry would get the same."""


class SandboxError(TriforgeError, kind="sandbox", status=503, retryable=True):
    """A sandbox that could not start or died; the program of the model is not judged."""

    def __init__(self, detail: str, *, retryable: bool = True, **more: Any) -> None:
        super().__init__(detail, **more)
        self.retryable = retryable


class RewardError(TriforgeError, kind="reward", status=502, retryable=True):
    """A failure of the reward service."""


class TrainerError(TriforgeError, kind="trainer"):
    """A step that a learner could not take."""


class StorageError(TriforgeError, kind="storage", status=507):
    """A failure of the database or the artifact store (disk full, no permission, damaged file)."""


_ROOT: Final = Path(__file__).parents[1]
_OURS: Final = (
    *(f"{_ROOT / part}/" for part in ("triforge", "environments", "methods", "services")),
    "<frozen",
)
_INSTALLED: Final = "site-packages"


def own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames of a user's own code, else those of installed packages."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_OURS) and not _standard(frame.filename)
    ]  # fmt: skip
    return [frame for frame in frames if _INSTALLED not in frame.filename] or frames


def raised_at(error: BaseException) -> str:
    """Return ` (FILE:LINE)` of the last frame of `own_frames`; empty without one."""
    own = own_frames(error)
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""


def raised_in(error: BaseException) -> str:
    """Return the type of an exception and the line of the user's code that raised it: `KeyError at FILE:LINE`."""
    return f"{type(error).__name__} at {raised_at(error)[2:-1]}".removesuffix(" at ")


def _standard(file: str) -> bool:
    return file.startswith(f"{sysconfig.get_path('stdlib')}/") and _INSTALLED not in file
