"""Versions that are LoRA adapters over a base: their folders, which one requests are sent with, and what engines show.

The folder is in PEFT's format, with a manifest that names the base and a probe: a prompt with its log-probabilities under
the new weights. An engine with an adapter says the version of its base for every token; a request's tokens are of the
version of the adapter that it was sent with, as long as the base below it stayed what it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from services.policy.engines.probe import Probe, read_probe, verify_probe
from services.policy.engines.protocol import Engine
from services.policy.weights.folder import (
    Depth,
    Version,
    Weights,
    announced,
    check_contents,
    check_folder,
    choose_rows,
    described,
    read_object,
)
from triforge.errors import TriforgeError, WeightsError
from triforge.store.manifests import MANIFEST
from triforge.store.model_digest import model_digest
from triforge.store.tensor_files import Entry, read_header
from triforge.types import VersionSpan, WeightsUpdate

_log = logging.getLogger(__name__)

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_UNLOAD_S = 10.0


# ---- folders ----


@dataclass(frozen=True, slots=True)
class AdapterFolder:
    """A folder that was looked at."""

    folder: Path
    rank: int
    targets: frozenset[str]  # names of layers that are adapted
    spared: frozenset[str]  # but not these: what a model sees with
    tensors: Mapping[str, Entry]
    base_uri: str  # of the model it was trained over, like its digest
    base_digest: str
    probe: Probe


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter and no whole model."""
    return (folder / CONFIG).is_file()


def check_adapter(folder: Path, *, digest: str, depth: Depth) -> AdapterFolder:
    """Pass if a folder is a whole adapter, as published. `contents` reads every byte."""
    manifest = announced(folder, digest)
    base = read_object(folder / MANIFEST).get("base")
    if not isinstance(base, dict) or not all(
        isinstance(base.get(k), str) for k in ("uri", "digest")
    ):
        raise WeightsError(f"{folder / MANIFEST}: names no base with uri and digest: {base!r:.80}")
    settings = read_object(folder / CONFIG)
    rank, targets = settings.get("r"), settings.get("target_modules")
    spared = settings.get("exclude_modules") or []
    if type(rank) is not int or rank < 1 or not isinstance(targets, list) or not targets:
        raise WeightsError(
            f"{folder / CONFIG}: r is {rank!r} and target_modules {targets!r:.80}; expected a number and names"
        )
    if not isinstance(spared, list):
        raise WeightsError(f"{folder / CONFIG}: exclude_modules is {spared!r:.80}; expected names")
    tensors = {entry.name: entry for entry in read_header(folder / TENSORS)}
    if depth == "contents" and tensors:
        check_contents(tensors, manifest)
    return AdapterFolder(
        folder, rank, frozenset(map(str, targets)), frozenset(map(str, spared)), tensors, base["uri"],
        base["digest"], read_probe(folder),
    )  # fmt: skip


def check_fits(adapter: AdapterFolder, base: Weights) -> None:
    """Pass if an adapter has its two matrices for every layer that it should adapt, in the right shapes, and no others."""
    path = adapter.folder / TENSORS
    expected: dict[str, Sequence[int]] = {}
    for name, entry in base.tensors.items():
        layer = name.removesuffix(".weight")
        adapted = layer.rpartition(".")[2] in adapter.targets and layer not in adapter.spared
        if adapted and len(entry.shape) == 2:
            wide, narrow = entry.shape
            expected[f"{_PREFIX}{layer}.lora_A.weight"] = (adapter.rank, narrow)
            expected[f"{_PREFIX}{layer}.lora_B.weight"] = (wide, adapter.rank)
    for word, names in (
        ("missing", expected.keys() - adapter.tensors.keys()),
        (f"not of a layer of {base.folder}", adapter.tensors.keys() - expected.keys()),
    ):
        if names:
            raise WeightsError(f"{path}: tensor {min(names)} is {word} ({len(names)} such in all)")
    for name, shape in expected.items():
        if tuple(adapter.tensors[name].shape) != tuple(shape):
            raise WeightsError(
                f"{path}: tensor {name} has shape {list(adapter.tensors[name].shape)}, expected {list(shape)}"
            )


def adapter_version(
    update: WeightsUpdate, before: Version | None, depth: Depth, prefix: str = ""
) -> Version:
    """An update whose folder is an adapter, and the base that it needs: what serves now if it is that, else its folder."""
    found = check_adapter(Path(update.uri), digest=update.digest, depth=depth)
    base = _base_of(found, update, before and before.below, depth)
    if base.weights is not None:
        check_fits(found, base.weights)
    return Version(
        update.version, update.uri, update.digest, base.weights, base=base, probe=found.probe,
        adapter=adapter_name(update.version, prefix),
    )  # fmt: skip


def _base_of(
    found: AdapterFolder, update: WeightsUpdate, below: Version | None, depth: Depth
) -> Version:
    uri = Path(found.base_uri)
    digest = model_digest(uri) if depth == "contents" else found.base_digest
    if digest != found.base_digest:
        raise WeightsError(
            f"weights {found.folder}: its base {uri} has changed: its digest is {digest}, expected {found.base_digest}"
        )
    if below is not None and below.uri == found.base_uri:
        return below if below.weights is not None else described(below)
    serving = below.weights if below is not None else None
    weights = check_folder(uri, digest="", depth=depth, serving=serving)
    return Version(update.version, found.base_uri, "", weights, choose_rows(weights, serving))


def newest_held(
    held: Mapping[str, str], below: Version, depth: Depth, prefix: str = ""
) -> Version | None:
    """The newest of the adapters (names and folders) that an engine holds over `below`, if it is one of ours."""
    ours = {int(n.rpartition("v")[2]): uri for n, uri in held.items() if is_named(n, prefix)}
    newest = max(ours, default=-1)
    if newest <= below.number:
        return None
    try:
        update = WeightsUpdate(version=newest, uri=ours[newest])
        found = adapter_version(update, below, depth, prefix)
    except WeightsError as error:
        _log.warning("adapter v%06d that an engine holds is left: %s", newest, error.detail)
        return None
    return found if found.below.number == below.number else None


# ---- engines ----


def adapter_name(version: int, prefix: str = "") -> str:
    """What engines call the adapter of a version; the prefix is of a model that shares them with others."""
    return f"{prefix}v{version:06d}"


def is_named(name: str, prefix: str) -> bool:
    """Whether an adapter is called as this model calls its own."""
    return re.fullmatch(re.escape(prefix) + r"v\d{6,}", name) is not None


async def unload(engine: Engine, name: str) -> None:
    """Unload an adapter; that SGLang answers when the last request with it has ended is not waited for."""
    try:
        async with asyncio.timeout(_UNLOAD_S):
            await engine.unload_adapter(name)
    except (TriforgeError, TimeoutError) as error:
        _log.info("engine %s keeps adapter %s: %s", engine.url, name, error)


async def verify_adapter(engine: Engine, version: Version, *, believed: bool = False) -> None:
    """Pass if a request with an adapter gets the learner's log-probabilities (`believed`: any); InputError if there is none."""
    if version.probe is not None:
        name = version.adapter
        await verify_probe(engine, version.probe, f"adapter {name}", name, believed=believed)


# ---- requests ----


class MixedError(Exception):
    """The base changed under a request: what came back is of no version, and has to be asked for again."""


@dataclass(frozen=True, slots=True)
class Adapted:
    """A version that is an adapter: its name at the engines (none: the base itself), and the version that they say of the base."""

    version: int
    name: str
    base: int


def adapted(version: Version) -> Adapted | None:
    """How requests name a version; None for a whole model."""
    if version.base is None:
        return None
    return Adapted(version.number, version.adapter, version.base.number)


class Adapters:
    """The adapters of a service. `active` is what requests are sent with from now on; None for none."""

    def __init__(self) -> None:
        self.active: Adapted | None = None
        self._retired: set[str] = set()
        self._used: Counter[str] = Counter()
        self._bases: set[int] = set()

    def hold_base(self, version: int) -> None:
        """The engines get the base of an adapter under this number, which never serves alone."""
        self._bases.add(version)

    def move(self, active: Adapted | None) -> None:
        """Another version is active. The adapter before is unloaded when nobody uses it any more."""
        if self.active is not None and self.active.name and self.active != active:
            self._retired.add(self.active.name)
        if active is not None:
            self._retired.discard(active.name)
        self.active = active

    def retire(self, names: Sequence[str]) -> None:
        """Adapters that engines hold from before are not needed."""
        self._retired.update(names)

    def unused(self) -> list[str]:
        """Adapters to unload now; named once."""
        found = sorted(name for name in self._retired if not self._used[name])
        self._retired.difference_update(found)
        for name in found:
            del self._used[name]
        return found

    @contextlib.contextmanager
    def use(self) -> Iterator[Adapted | None]:
        """Inside, the adapter that is active now stays loaded."""
        active = self.active
        if active is None:
            yield None
            return
        self._used[active.name] += 1
        try:
            yield active
        finally:
            self._used[active.name] -= 1

    def label(
        self, versions: Sequence[VersionSpan], used: Adapted | None
    ) -> tuple[VersionSpan, ...]:
        """The versions of an answer's tokens, as the engine says them and for the adapter that was used; or MixedError."""
        if used is None:
            if any(span.version in self._bases for span in versions):
                raise MixedError
            return tuple(versions)
        if any(span.version != used.base for span in versions):
            raise MixedError
        if not versions:
            return ()
        return (VersionSpan(version=used.version, start=0, end=versions[-1].end),)
