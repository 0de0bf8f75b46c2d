"""The versions of a role: the active one, and those of an update, of an earlier number, or that an engine reports."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from services.policy.engines.tokenizer import Tokenizers
from services.policy.weights.adapters import (
    AdapterFolder,
    Adapters,
    Version,
    adapter_name,
    check_adapter,
    is_adapter,
    is_named,
)
from services.policy.weights.evidence import PROBE, choose_rows, read_probe
from services.policy.weights.folder import Depth, Weights, check_folder, read_weights
from triforge.errors import NotFoundError, TriforgeError, UnavailableError, WeightsError
from triforge.store.manifests import load_manifest
from triforge.store.model_digest import model_digest
from triforge.types import Role, WeightsUpdate

_log = logging.getLogger(__name__)


class Versions:
    """The version of a role that is active, with its renderer and adapter, and the folders of the others.

    `model_path` is the folder whose tokenizer is used at first, and that stands for the serving weights where those cannot be
    read. The learners' runs are below the folder `published`. Engines that are `shared` serve other models as well, all of them
    adapters over one base: no other base is loaded into them, and the base itself is served under any number.
    """

    def __init__(
        self,
        role: Role,
        *,
        model_path: str = "",
        published: Path | None = None,
        depth: Depth = "contents",
        shared: bool = False,
    ) -> None:
        self.role, self.shared = role, shared
        self.active: Version | None = None  # None before any engine has answered
        self.lost = ""  # the file or folder of the active version that has gone
        self.served: dict[int, Version] = {}
        self.adapters = Adapters()
        self.tokenizers = Tokenizers(model_path)
        self.lock = asyncio.Lock()  # one update, rollback or start at a time
        self._model_path = model_path
        self._published = published
        self._depth: Depth = depth
        self._prefix = f"{role}-" * shared

    def activate(self, version: Version) -> None:
        """Make a version active."""
        self.active, self.lost = version, ""
        self.served[version.number] = Version(version.number, version.uri, version.digest)
        self.adapters.move(version)

    def find_lost(self) -> None:
        """Note whether files of the active version have gone since they were read here; blocking."""
        active, lost = self.active, ""
        if active is None:
            return
        # A folder that a learner has published was there, also before this process began.
        folder = Path(active.uri)
        named = [folder] if active.base is not None or self._published in folder.parents else []
        files = sorted({e.file for e in active.weights.tensors.values()} if active.weights else ())
        with contextlib.suppress(OSError):  # of a disk that does not answer: nothing is known
            lost = next((str(path) for path in (*files, *named) if not path.exists()), "")
        if lost and lost != self.lost:
            _log.warning("%s has gone: no engine can load version %d again", lost, active.number)
        self.lost = lost

    def known(self) -> Version:
        """Return the active version; raise UnavailableError before any engine has answered."""
        if self.active is None:
            raise UnavailableError("no engine has answered yet, so no weight version is known")
        return self.active

    def check(self, update: WeightsUpdate) -> Version:
        """Check the folder of an update, before any engine is disturbed; blocking."""
        active = self.active
        serving = active.weights if active else None
        if serving is None and self._model_path:
            serving = described(Version(0, self._model_path)).weights
        below = active.below if active else Version(-1, "", weights=serving)
        if is_adapter(Path(update.uri)):
            version = self._adapter(update, below)
            if version.below.number == version.number:
                self._demand_same_base(update, below)
            return version
        if self.shared and below.uri == update.uri:
            return Version(update.version, update.uri, update.digest, below.weights, base=below)
        self._demand_same_base(update, below)
        weights = check_folder(
            Path(update.uri), digest=update.digest, depth=self._depth, serving=serving
        )
        version = Version(update.version, update.uri, update.digest)
        return _with_evidence(version, weights, serving)

    def _demand_same_base(self, update: WeightsUpdate, below: Version) -> None:
        if self.shared:
            raise WeightsError(
                f"weights {update.uri}: given with TRIFORGE_SHARED_ENGINES = true, expected {below.uri}, the base "
                "of all models that these engines serve, or an adapter over it"
            )

    def _adapter(self, update: WeightsUpdate, below: Version) -> Version:
        """Check an adapter. Its base is the version that serves if that has the base's folder, else the folder is checked."""
        adapter = check_adapter(Path(update.uri), digest=update.digest, depth=self._depth)
        base = self._base(adapter, update, below)
        name = adapter_name(update.version, self._prefix)
        return Version(
            update.version, update.uri, update.digest, base.weights, base=base, adapter=name, probe=adapter.probe
        )  # fmt: skip

    def _base(self, adapter: AdapterFolder, update: WeightsUpdate, below: Version) -> Version:
        uri = Path(adapter.base_uri)
        digest = model_digest(uri) if self._depth == "contents" else adapter.base_digest
        if digest != adapter.base_digest:
            raise WeightsError(
                f"weights {update.uri}: its base {uri} has changed: its digest is {digest}, expected {adapter.base_digest}"
            )
        if below.uri == adapter.base_uri:
            return below if below.weights is not None else described(below)
        weights = check_folder(uri, digest="", depth=self._depth, serving=below.weights)
        rows = choose_rows(weights.rows, below.weights.rows if below.weights else {})
        return Version(update.version, adapter.base_uri, "", weights, rows)

    def earlier(self, number: int) -> Version:
        """Return an earlier version: one that this process has served, or one whose folder lies next to the active one's.

        Raises:
            NotFoundError: there is none of this number.
        """
        active = self.known()
        version = self.served.get(number)
        if version is None and active.uri:
            folder = Path(active.uri).with_name(f"v{number:06d}")
            with contextlib.suppress(TriforgeError):
                version = Version(number, str(folder), load_manifest(folder).digest)
        if version is None or not version.uri:
            known = ", ".join(map(str, sorted(self.served)))
            raise NotFoundError(
                f"weights: given version {number}, expected one that this service has served ({known}) or whose folder "
                f"lies next to {active.uri}"
            )
        return version

    def candidates(self, reported: Version, *, broadcast: bool) -> list[Version]:
        """Return the folders that an engine's weights may come from, likeliest first.

        An engine that received its weights in a `broadcast` reports the folder of its start; a learner has published the others
        as RUN/`role`/vNNNNNN, of which the newest is the likeliest.
        """
        named = described(reported)
        others = [v for v in self._of_learners(named) if v.uri != named.uri]
        return [*others, named] if broadcast else [named, *others]

    def _of_learners(self, named: Version) -> list[Version]:
        versions = []
        for folder in (
            self._published.glob(f"*/{self.role}/v{named.number:06d}") if self._published else ()
        ):
            try:
                manifest, weights = load_manifest(folder), read_weights(folder)
                if "base" in manifest.about:
                    continue  # an adapter
                version = Version(named.number, str(folder), manifest.digest)
                evident = _with_evidence(version, weights, named.weights)
                versions.append((folder.stat().st_mtime, evident))
            except (TriforgeError, OSError) as error:
                _log.warning("weight folder %s is passed over: %s", folder, error)
        versions.sort(key=lambda pair: -pair[0])
        return [version for _, version in versions]

    def newest_adapter(self, held: Mapping[str, str], below: Version) -> Version | None:
        """Return the newest of this role's adapters (names and folders) that an engine holds over `below`."""
        numbers = {
            int(name.rpartition("v")[2]): uri for name, uri in held.items() if self.owns(name)
        }
        newest = max(numbers, default=-1)
        if newest <= below.number:
            return None
        try:
            version = self._adapter(WeightsUpdate(version=newest, uri=numbers[newest]), below)
        except WeightsError as error:
            _log.warning("adapter v%06d of an engine is not served: %s", newest, error.detail)
            return None
        return version if version.below.number == below.number else None

    def owns(self, adapter: str) -> bool:
        """Return whether an adapter of an engine has a name of this role."""
        return is_named(adapter, self._prefix)


def described(version: Version) -> Version:
    """Return a version with the weights and evidence of its folder, or unchanged if this machine cannot read the folder."""
    try:
        return _with_evidence(version, read_weights(Path(version.uri)), None)
    except WeightsError as error:
        _log.warning("the serving weights cannot be compared: %s", error.detail)
        return version


def _with_evidence(version: Version, weights: Weights, serving: Weights | None) -> Version:
    """Return a version with its weights, rows and probe. Folders that no learner has published have no probe."""
    probe = read_probe(weights.folder) if (weights.folder / PROBE).is_file() else None
    rows = choose_rows(weights.rows, serving.rows if serving else {})
    return replace(version, weights=weights, rows=rows, probe=probe)
