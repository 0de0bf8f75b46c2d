"""Every object of k8s/ in every variant: as Kustomize makes it for an overlay, with one component or two."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from scripts.k8s_test.cases import ONLY
from scripts.k8s_test.manifests import K8S, Document, folders, render

Variant = tuple[str, frozenset[str]]  # an overlay and components
Key = tuple[str, str]  # kind and name
EXCLUSIVE = ("keda", "external-redis", "keda-external-redis")  # each stands in the place of the others  # fmt: skip


@dataclass
class _Component:
    added: dict[Key, Document]
    patches: list[tuple[Document, Any]]  # the target, and a JSON patch or what deletes it

    def patches_of(self, key: Key) -> list[Any]:
        return [
            patch for target, patch in self.patches
            if re.fullmatch(target["kind"], key[0]) and re.fullmatch(target.get("name", ".*"), key[1])
        ]  # fmt: skip


def objects() -> dict[Key, dict[Variant, Document | None]]:
    """Return what each object is in each variant that can make a difference to it; None where it is absent."""
    overlays = {name: {_key(d): d for d in render((name,))} for name in folders("overlays")}
    components = {name: _component(name) for name in folders("components")}
    found: dict[Key, dict[Variant, Document | None]] = {}
    for key in sorted({key for part in (*overlays.values(), *(one.added for one in components.values())) for key in part}):  # fmt: skip
        touching = [name for name, one in components.items() if key in one.added or one.patches_of(key)]  # fmt: skip
        found[key] = {
            (overlay, frozenset(names)): _changed(key, base.get(key), [components[name] for name in names])
            for overlay, base in overlays.items()
            for names in _combinations(overlay, touching)
        }  # fmt: skip
    return found


def _component(name: str) -> _Component:
    """`k8s/components/<name>`, with the components that it has itself."""
    folder = K8S / "components" / name
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    found = _Component({}, [])
    for inner in kustomization.get("components", []):
        other = _component((folder / inner).resolve().name)
        found.added |= other.added
        found.patches += other.patches
    for file in kustomization.get("resources", []):
        for document in yaml.safe_load_all((folder / file).read_text()):
            document["metadata"]["namespace"] = kustomization["namespace"]
            found.added[_key(document)] = document
    for patch in kustomization.get("patches", []):
        text = (folder / patch["path"]).read_text() if "path" in patch else patch["patch"]
        found.patches.append((patch["target"], yaml.safe_load(text)))
    return found


def _combinations(overlay: str, names: list[str]) -> Iterator[tuple[str, ...]]:
    allowed = [name for name in names if overlay in ONLY.get(name, [overlay])]
    pairs = itertools.combinations(allowed, 2)
    return itertools.chain([()], ((name,) for name in allowed), (pair for pair in pairs if not set(pair) <= set(EXCLUSIVE)))  # fmt: skip


def _changed(key: Key, document: Document | None, parts: list[_Component]) -> Document | None:
    for part in parts:
        document = part.added.get(key, document)
    for patch in itertools.chain.from_iterable(part.patches_of(key) for part in parts):
        if document is None or isinstance(patch, dict):  # `$patch: delete`
            return None
        document = copy.deepcopy(document)
        for operation in patch:
            _operate(document, operation)
    return document


def _operate(document: Document, operation: Document) -> None:
    *way, last = [step.replace("~1", "/") for step in operation["path"].split("/")[1:]]
    inner: Any = document
    for step in way:
        inner = inner[int(step)] if isinstance(inner, list) else inner[step]
    if isinstance(inner, list):
        inner.append(operation["value"])  # the only change of a list here is at its end
    elif operation["op"] == "remove":
        del inner[last]
    else:
        inner[last] = operation["value"]


def _key(document: Document) -> Key:
    return document["kind"], document["metadata"]["name"]
