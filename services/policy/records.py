"""What this machine can read of the versions that engines serve, and of those beside them."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import re
from collections.abc import Mapping
from pathlib import Path

from services.policy.adapter_folder import AdapterFolder, check_adapter, check_fits
from services.policy.adapters import adapter_name
from services.policy.delivery import Delivery, Live
from services.policy.proof import choose
from services.policy.sglang import SGLangEngine
from services.policy.weight_folder import (
    Depth,
    Weights,
    check_folder,
    manifest_version,
    read_weights,
)
from triforge.errors import TriforgeError, WeightsError
from triforge.store.model_digest import model_digest
from triforge.types import WeightsUpdate

_log = logging.getLogger(__name__)


def described(live: Live) -> Live:
    """A version with what its folder says; as it is if this machine cannot read the folder."""
    try:
        weights: Weights = read_weights(Path(live.uri))
        return dataclasses.replace(live, weights=weights, shown=choose(weights, None))
    except WeightsError as error:
        _log.warning("the weights that serve cannot be compared: %s", error.detail)
        return live


def beside(live: Live, version: int) -> Live | None:
    """The version whose folder lies beside the live one's, by its manifest."""
    parent = Path(live.uri).parent
    for folder in sorted(parent.iterdir()) if live.uri and parent.is_dir() else ():
        found = manifest_version(folder)
        if found is not None and found[0] == version:
            return Live(version, str(folder), found[1])
    return None


def adapter_of(update: WeightsUpdate, before: Live | None, depth: Depth) -> Live:
    """An update whose folder is an adapter, and the base that it needs: what serves now if it is that, else its folder.

    Args:
        update: the update.
        before: what serves now.
        depth: how much is read of the folders.

    Raises:
        WeightsError: the folder, or its base, is damaged or missing, or they do not fit.
    """
    found = check_adapter(Path(update.uri), digest=update.digest, depth=depth)
    base = _base_of(found, update, before and before.below, depth)
    if base.weights is not None:
        check_fits(found, base.weights)
    return Live(
        update.version, update.uri, update.digest, base.weights, base=base, probe=found.probe
    )


def _base_of(found: AdapterFolder, update: WeightsUpdate, below: Live | None, depth: Depth) -> Live:
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
    return Live(update.version, found.base_uri, "", weights, choose(weights, serving))


def _newest_held(held: Mapping[str, str], below: Live, depth: Depth) -> Live | None:
    """The newest of the adapters that an engine holds over `below`, if it is one of ours; `held` are names and folders."""
    ours = {int(name[1:]): uri for name, uri in held.items() if re.fullmatch(r"v\d{6,}", name)}
    newest = max(ours, default=-1)
    if newest <= below.version:
        return None
    try:
        found = adapter_of(WeightsUpdate(version=newest, uri=ours[newest]), below, depth)
    except WeightsError as error:
        _log.warning("adapter v%06d that an engine holds is left: %s", newest, error.detail)
        return None
    return found if found.base is not None and found.base.version == below.version else None


async def with_adapter(
    engine: SGLangEngine, live: Live, delivery: Delivery, depth: Depth
) -> tuple[Live, list[str]]:
    """What serves when a service starts and an engine holds `live`: that, or the newest adapter that it shows over it.

    Returns:
        The version, and the names of the adapters that the engine holds and nobody needs.
    """
    try:  # few engines have any, or a list of them
        held = await engine.adapters() if live.uri else {}
        found = await asyncio.to_thread(_newest_held, held, live, depth)
        if found is None:
            return live, []
        await engine.resume()
        await delivery.ensure_adapter(engine, found)
    except TriforgeError as error:
        _log.warning("adapters of engine %s are left: %s", engine.url, error.detail)
        return live, []
    return found, [name for name in held if name != adapter_name(found.version)]
