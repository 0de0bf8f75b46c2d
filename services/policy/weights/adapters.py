"""LoRA adapters: the checks of their folders, and the ones that requests use.

A folder is in PEFT's format, with a manifest that names the base model, and a probe. An engine with an adapter reports the
version of its base for every token; the tokens of a request have the version of the adapter that it was sent with, as long as
the base below it stayed the same.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from services.policy.weights.evidence import Probe, Rows, read_probe
from services.policy.weights.folder import Depth, Weights, load_announced, read_object
from triforge.errors import WeightsError
from triforge.store.manifests import MANIFEST
from triforge.store.tensor_files import read_header
from triforge.types import VersionSpan

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"


# ---- folders ----


@dataclass(frozen=True, slots=True)
class AdapterFolder:
    """The base model that an adapter was trained over, and its probe."""

    base_uri: str
    base_digest: str
    probe: Probe


def is_adapter(folder: Path) -> bool:
    """Return whether a folder holds an adapter, not a whole model."""
    return (folder / CONFIG).is_file()


def check_adapter(folder: Path, *, digest: str, depth: Depth) -> AdapterFolder:
    """Raise WeightsError unless a folder is an adapter as published. `contents` reads every byte.

    Whether it fits its base the engine checks when it loads it, which holds no request; the probe shows that it is applied.
    """
    manifest = load_announced(folder, digest)
    if manifest is not None and depth == "contents":
        manifest.check(contents=True)
    base = read_object(folder / MANIFEST).get("base")
    if not isinstance(base, dict) or not all(
        isinstance(base.get(k), str) for k in ("uri", "digest")
    ):
        raise WeightsError(f"{folder / MANIFEST}: names no base with uri and digest: {base!r:.80}")
    read_header(folder / TENSORS)
    return AdapterFolder(base["uri"], base["digest"], read_probe(folder))


# ---- versions ----


@dataclass(frozen=True, slots=True)
class Version:
    """A weight version, the folder that it comes from, and the evidence that engines have to show."""

    number: int
    uri: str  # empty if it is not known
    digest: str = ""  # of its manifest
    weights: Weights | None = None  # None if this machine cannot read the folder
    rows: tuple[Rows, ...] = ()
    base: Version | None = None  # of an adapter, the version below it, whose `weights` it has
    adapter: str = (
        ""  # its name at the engines; empty where a shared base serves without an adapter
    )
    probe: Probe | None = None

    @property
    def below(self) -> Version:
        """The version that an engine holds as its own weights."""
        return self.base or self


def adapter_name(version: int, prefix: str = "") -> str:
    """Return the engines' name of a version's adapter; the prefix is of a model that shares them with others."""
    return f"{prefix}v{version:06d}"


def is_named(name: str, prefix: str) -> bool:
    """Return whether an adapter has a name of this model."""
    return re.fullmatch(re.escape(prefix) + r"v\d{6,}", name) is not None


# ---- requests ----


class MixedError(Exception):
    """The base changed under a request: its tokens belong to no version, and the request has to be sent again."""


class Adapters:
    """The adapters of a service. New requests are sent with `active`, or with none."""

    def __init__(self) -> None:
        self.active: Version | None = None
        self._retired: set[str] = set()
        self._used: Counter[str] = Counter()
        self._bases: set[int] = set()

    def hold_base(self, version: int) -> None:
        """Note a number under which engines get the base of an adapter; it never serves alone."""
        self._bases.add(version)

    def move(self, version: Version) -> None:
        """Send requests with the adapter of this version. The one before is unloaded when no request uses it any more."""
        active = version if version.base is not None else None
        if self.active is not None and self.active.adapter:
            self._retired.add(self.active.adapter)
        if active is not None:
            self._retired.discard(active.adapter)
        self.active = active

    def retire(self, names: Sequence[str]) -> None:
        """Have adapters unloaded that engines hold from an earlier process."""
        self._retired.update(names)

    def unused(self) -> list[str]:
        """Return the adapters to unload now, each once."""
        names = sorted(name for name in self._retired if not self._used[name])
        self._retired.difference_update(names)
        for name in names:
            del self._used[name]
        return names

    @contextlib.contextmanager
    def use(self) -> Iterator[Version | None]:
        """Keep the active adapter loaded inside of the block."""
        active = self.active
        if active is None:
            yield None
            return
        self._used[active.adapter] += 1
        try:
            yield active
        finally:
            self._used[active.adapter] -= 1

    def label(self, spans: Sequence[VersionSpan], used: Version | None) -> tuple[VersionSpan, ...]:
        """Return the versions of an answer's tokens, from those that the engine reports and the adapter that was used."""
        if used is None or used.base is None:
            if any(span.version in self._bases for span in spans):
                raise MixedError
            return tuple(spans)
        if any(span.version != used.base.number for span in spans):
            raise MixedError
        if not spans:
            return ()
        return (VersionSpan(version=used.number, start=0, end=spans[-1].end),)
