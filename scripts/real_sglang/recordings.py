"""Recorded exchanges with an engine: how they are written, read and compared.

What differs from one recording to the next (ids, clocks, paths, long lists of numbers) is replaced, so that a second
recording of the same server gives the same files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from scripts.real_sglang.exchanges import Exchange, Folders

_VOLATILE: Mapping[str, Any] = {
    "e2e_latency": 0.5, "response_sent_to_client_ts": 0.5, "created": 0, "cache_salt": "salt", "request_id": "drawn",
}  # fmt: skip
_DRAWN_ID = re.compile(r"[0-9a-f]{32}|modelperm-[0-9a-f]+")
# SGLang's validation errors end with a place in its code
_TRACE = re.compile(r"\n\n  File .*", re.DOTALL)
_MAPS = ("checksums",)  # objects whose keys are tensor names
_UNREAD = {"embedding"}  # fields of SGLang that say nothing of a model that generates
_BY_CHANCE = ("cached_tokens_details",)  # null when nothing came from the cache
_DIGITS, _LONG_LIST, _KEPT = 4, 16, 4


def write(exchanges: Iterable[Exchange], folder: Path, *, engine: str, folders: Folders) -> None:
    """One JSON file an exchange, in place of all that were there."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.json"):
        old.unlink()
    for exchange in exchanges:
        document = {"engine": engine, **asdict(settled(exchange, folders))}
        name = document.pop("name")
        if not document["stream"]:
            del document["stream"]
        text = json.dumps(document, indent=2, ensure_ascii=False)
        (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def read(folder: Path) -> dict[str, Exchange]:
    found = {}
    for path in sorted(folder.glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        del document["engine"]
        found[path.stem] = Exchange(name=path.stem, **document)
    return found


def settled(exchange: Exchange, folders: Folders) -> Exchange:
    """Return the exchange without what differs from one recording to the next."""
    paths = {
        str(folders.start): "/models/policy/v000000",
        str(folders.other): "/models/policy/v000001",
        str(folders.missing): "/models/missing",
    }
    reply = _settle(exchange.reply, paths)
    if exchange.stream:
        reply = _thinned(reply)
    return replace(exchange, request=_settle(exchange.request, paths), reply=reply)


def _settle(value: Any, paths: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _settle_item(key, item, paths) for key, item in value.items()}
    if isinstance(value, list):
        if len(value) > _LONG_LIST and all(isinstance(item, int | float) for item in value):
            value = value[:_KEPT]
        return [_settle(item, paths) for item in value]
    if isinstance(value, float):
        return round(value, _DIGITS)
    if isinstance(value, str):
        for path, shown in paths.items():
            value = value.replace(path, shown)
        return _TRACE.sub("", value)
    return value


def _settle_item(key: str, value: Any, paths: Mapping[str, str]) -> Any:
    if key in _VOLATILE and value is not None:
        return _VOLATILE[key]
    if key == "id" and isinstance(value, str) and _DRAWN_ID.fullmatch(value):
        return "0" * 32
    if key in _MAPS:
        value = dict(list(value.items())[:2])
    return _settle(value, paths)


def _thinned(events: list[Any]) -> list[Any]:
    """Return the events of a stream without those that look like the one before; the last one stays."""
    kept: list[Any] = []
    for event in events[:-1]:
        if not kept or not alike(kept[-1], event):
            kept.append(event)
    return kept + events[-1:]


def alike(found: Any, recorded: Any) -> bool:
    """Whether two replies have the same names, types and nesting.

    Numbers are one type. The elements of two lists look the same as sets; an empty list is like any list.
    """
    if isinstance(found, dict) and isinstance(recorded, dict):
        return found.keys() - _UNREAD == recorded.keys() - _UNREAD and all(
            _items_alike(key, item, recorded[key])
            for key, item in found.items()
            if key not in _UNREAD
        )
    if isinstance(found, list) and isinstance(recorded, list):
        if not found or not recorded:
            return True
        return all(any(alike(one, other) for other in recorded) for one in found) and all(
            any(alike(one, other) for one in found) for other in recorded
        )
    return _type(found) == _type(recorded)


def _items_alike(key: str, found: Any, recorded: Any) -> bool:
    if key in _BY_CHANCE:
        return True
    if key in _MAPS:
        return alike(list(found.values()), list(recorded.values()))
    return alike(found, recorded)


def _type(value: Any) -> str:
    return "number" if type(value) in (int, float) else type(value).__name__
