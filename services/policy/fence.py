"""Which weight version is live, and which engines may serve it.

An engine serves only while it has proven, through its own `/model_info`, that it holds the live version. An update asks
every engine; the live version moves when all that accepted it have proven it, and an engine that failed is fenced off
and brought up to date in the background. Requests run on all the while: an engine that loads holds them and goes on.

    start       the newest version that any engine holds is live
    update      version up: check folder -> load everywhere -> prove -> live version moves -> fence off who failed
    watch       every probe_s: an engine is gone -> fence off; holds another version -> load the live one; proven -> admit
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from services.policy.pool import Member, Pool
from triforge.errors import ConflictError, TriforgeError, UnavailableError, WeightsError
from triforge.messages import Role, WeightsState, WeightsUpdate
from triforge.rendering import Renderer

_log = logging.getLogger(__name__)
_RENDERING_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


@dataclass(frozen=True, slots=True)
class Live:
    """The version that serves and the folder it came from."""

    version: int
    uri: str


class Fence:
    """Keeps the live version and the renderer that belongs to it.

    Args:
        pool: the engines.
        role: the model role, for `WeightsState`.
        model_path: folder whose tokenizer is used at first; empty asks the first engine for its folder.
        probe_s: seconds between two looks at the engines; a lost engine is looked at sooner.
    """

    def __init__(
        self, pool: Pool, *, role: Role, model_path: str = "", probe_s: float = 2.0
    ) -> None:
        self._pool = pool
        self._role = role
        self._probe_s = probe_s
        self._lock = asyncio.Lock()
        self._live: Live | None = None
        self._renderer: Renderer | None = None
        self._rendering = ""
        if model_path:
            self._rendering = _rendering_digest(Path(model_path))
            self._renderer = Renderer.from_folder(model_path)

    @property
    def renderer(self) -> Renderer:
        """The renderer of the live model.

        Raises:
            UnavailableError: no model folder was given and no engine has answered yet.
        """
        if self._renderer is None:
            raise UnavailableError(
                "no tokenizer yet: no engine has answered; set TRIFORGE_MODEL to the model folder"
            )
        return self._renderer

    def state(self) -> WeightsState:
        """What serves.

        Raises:
            UnavailableError: no engine has answered yet.
        """
        if self._live is None:
            raise UnavailableError("no engine has answered yet, so no weight version is known")
        return WeightsState(
            role=self._role,
            version=self._live.version,
            uri=self._live.uri,
            engines=len(self._pool.members),
            ready=len(self._pool.serving()),
        )

    async def ready(self) -> None:
        """Pass if requests can be served.

        Raises:
            UnavailableError: no engine serves, or there is no tokenizer yet.
        """
        _ = self.renderer
        if not self._pool.serving():
            raise self._pool.nobody()

    async def update(self, update: WeightsUpdate) -> WeightsState:
        """Serve another version. The same version and folder again changes nothing.

        Raises:
            ConflictError: the version is older than the live one, or the live one came from elsewhere.
            WeightsError: the folder is missing, not what its digest says, or refused by the engines. The old weights
                serve on.
            UnavailableError: no engine could be asked.
        """
        async with self._lock:
            live = self._live
            if live is not None and update.version <= live.version:
                if update.version == live.version and update.uri == live.uri:
                    return self.state()
                raise ConflictError(
                    f"weights: given version {update.version} of {update.uri}, but version {live.version} of "
                    f"{live.uri} serves; versions only go up"
                )
            renderer, digest = await asyncio.to_thread(self._check, update)
            wanted = Live(update.version, update.uri)
            failures = await asyncio.gather(
                *(self._bring(member, wanted) for member in self._pool.members)
            )
            if all(failures):
                raise await self._refused(failures)
            self._live, self._renderer, self._rendering = wanted, renderer, digest
            for member, failure in zip(self._pool.members, failures, strict=True):
                if failure is None:
                    self._pool.admit(member)
                else:
                    self._pool.fence_off(member, failure.detail)
            _log.info("weight version %d of %s is live", wanted.version, wanted.uri)
            return self.state()

    async def watch(self) -> None:
        """Look at the engines again and again; never returns."""
        while True:
            self._pool.lost.clear()
            await self.look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._probe_s):
                    await self._pool.lost.wait()
            # A dying engine may be lost many times in a moment.
            await asyncio.sleep(min(0.1, self._probe_s))

    async def look(self) -> None:
        """Ask every engine what it holds, and admit, fence off or bring it up to date."""
        async with self._lock:
            await self._look()

    async def _look(self) -> None:
        found = await asyncio.gather(*(self._probe(member) for member in self._pool.members))
        known = [info for info in found if info is not None]
        if self._live is None and known:
            self._live = max(known, key=lambda info: info.version)
            await asyncio.to_thread(self._adopt, self._live)
        for member, info in zip(self._pool.members, found, strict=True):
            if info is None or self._live is None:
                continue
            failure: TriforgeError | None = None
            if info.version != self._live.version:
                self._pool.fence_off(member, f"holds weight version {info.version}")
                failure = await self._bring(member, self._live)
            elif not member.serving:
                failure = await self._resume(member)
            if failure is None:
                self._pool.admit(member)
            else:
                self._pool.fence_off(member, failure.detail)

    async def _probe(self, member: Member) -> Live | None:
        try:
            info = await member.engine.info()
        except TriforgeError as error:
            self._pool.fence_off(member, error.detail)
            return None
        return Live(info.version, info.model_path)

    async def _resume(self, member: Member) -> TriforgeError | None:
        """Before an engine is admitted: whoever lost it may have lost it in the middle of a pause."""
        try:
            await member.engine.resume()
        except TriforgeError as error:
            return error
        return None

    async def _bring(self, member: Member, wanted: Live) -> TriforgeError | None:
        try:
            await member.engine.load(wanted.uri, wanted.version)
        except TriforgeError as error:
            return error
        return None

    async def _refused(self, failures: Sequence[TriforgeError | None]) -> TriforgeError:
        """No engine took the update: which error leaves, and whether the old weights are still proven."""
        await self._look()
        found = [failure for failure in failures if failure is not None]
        details = tuple(failure.detail for failure in found)
        for failure in found:
            if isinstance(failure, WeightsError):
                return WeightsError(failure.detail, problems=details)
        return UnavailableError(
            f"no engine could load the weights: {'; '.join(details)}", problems=details
        )

    def _check(self, update: WeightsUpdate) -> tuple[Renderer | None, str]:
        """Look at the folder before any engine is disturbed; blocking."""
        folder = Path(update.uri)
        if not (folder / "config.json").is_file():
            raise WeightsError(
                f"weights {update.uri}: expected a model folder with config.json on this machine"
            )
        if update.digest:
            manifest = folder / "manifest.json"
            found = _sha256(manifest) if manifest.is_file() else "none"
            if found != update.digest.removeprefix("sha256:"):
                raise WeightsError(
                    f"weights {update.uri}: the digest of manifest.json is {found}, expected {update.digest}; "
                    "the folder is incomplete or was changed after it was published"
                )
        return self._rendering_of(folder)

    def _rendering_of(self, folder: Path) -> tuple[Renderer | None, str]:
        digest = _rendering_digest(folder)
        if digest in ("", self._rendering):
            return self._renderer, self._rendering
        return Renderer.from_folder(folder), digest

    def _adopt(self, live: Live) -> None:
        """At the start: take over the tokenizer of what the engines hold; blocking."""
        try:
            self._renderer, self._rendering = self._rendering_of(Path(live.uri))
        except WeightsError as error:
            _log.warning("the tokenizer of %s cannot be read: %s", live.uri, error.detail)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _rendering_digest(folder: Path) -> str:
    """What the renderer depends on; empty for a folder without a tokenizer."""
    if not (folder / _RENDERING_FILES[0]).is_file():
        return ""
    found = [
        name + _sha256(folder / name) for name in _RENDERING_FILES if (folder / name).is_file()
    ]
    return hashlib.sha256("".join(found).encode()).hexdigest()
