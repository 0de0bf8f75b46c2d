"""The templates: every object once, with the conditions under which it or a part of it is there."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain, groupby
from typing import Any

from scripts.helm_chart.conditions import branches, condition, joined
from scripts.helm_chart.source import Key, Variant, objects
from scripts.helm_chart.values import APPENDED, BLOCKS, MERGED, OBJECTS, SCALARS

_HEAD = "{{- /* Written by `make chart` from the overlays and components in k8s/. */}}"
_OWN_FILE = ("Deployment", "StatefulSet", "Job", "Service", "LeaderWorkerSet")
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9._/-]*")
_NOT_TEXT = re.compile(r"true|false|null|yes|no|on|off|y|n", re.IGNORECASE)
_EXPRESSION = re.compile(r"(\{\{.*?\}\})")
_ABSENT = object()
Found = Mapping[Variant, Any]  # what stands at one place in each variant
Choice = list[tuple[str, list[str]]]  # conditions with their lines; the last may have none


def templates() -> dict[str, str]:
    """Text of each file in the folder `templates`."""
    texts: dict[str, list[str]] = {}
    for (kind, name), variants in objects().items():
        file = name if kind in _OWN_FILE else re.sub(r"(?<=[a-z])(?=[A-Z])", "-", kind).lower()
        texts.setdefault(f"{file}.yaml", [_HEAD]).extend(_Object((kind, name)).document(variants))
    return {file: "\n".join(lines) + "\n" for file, lines in sorted(texts.items())}


class _Object:
    """Writes one object."""

    def __init__(self, key: Key) -> None:
        self.label, name = "/".join(key), key[1]
        self.words = {"NAME": name, "ROLE": (name.split("-") * 2)[1]}

    def document(self, found: Found) -> list[str]:
        there = {variant: value for variant, value in found.items() if value is not None}
        term = condition({variant: value is not None for variant, value in found.items()})
        of_values = [value for pattern, value in OBJECTS if re.fullmatch(pattern, self.label)]
        terms = [*of_values, *([term] if term else [])]
        body = ["---", *self._mapping(there, "", 0)]
        return _flat([[(joined("and", terms) if terms else "", body)]])

    def _mapping(self, found: Found, path: str, indent: int) -> list[str]:
        keys = {key for value in found.values() for key in value}
        blocks = {key: self._filled(values, path) for label, at, key, values in BLOCKS if self._is(label, at, path)}  # fmt: skip
        written = []
        for key in sorted(keys | set(blocks)):
            at = {variant: value.get(key, _ABSENT) for variant, value in found.items()}
            inner = f"{path}/{key}".removeprefix("/")
            head = f"{' ' * indent}{self._scalar(key, inner + '#')}:"
            write = partial(self._value, head, path=inner, indent=indent)
            choice = self._choice(at, write)
            if key in blocks:
                given = ["{{- with " + blocks[key] + " }}", head, f"{{{{- toYaml . | nindent {indent + 2} }}}}"]  # fmt: skip
                otherwise = ["{{- else }}", *_flat([choice])] if choice else []
                choice = [("", [*given, *otherwise, "{{- end }}"])]
            written.append(choice)
        return _flat(written)

    def _choice(self, found: Found, write: Callable[[Found], list[str]]) -> Choice:
        """Everything that may be here, each with its condition."""
        there = {variant: value for variant, value in found.items() if value is not _ABSENT}
        if not there:
            return []
        if _mergeable(list(there.values())):
            return [(condition({variant: variant in there for variant in found}), write(there))]
        texts = {variant: json.dumps(value, sort_keys=True) if variant in there else "" for variant, value in found.items()}  # fmt: skip
        return [
            (term, write({variant: found[variant] for variant in found if texts[variant] == text}) if text else [])
            for term, text in branches(texts)
        ]  # fmt: skip

    def _value(self, head: str, found: Found, path: str, indent: int) -> list[str]:
        value = next(iter(found.values()))
        if isinstance(value, dict) and value:
            body = self._mapping(found, path, indent + 2)
            return self._merged(head, body, path) if self._is(*MERGED[:2], path) else [head, *body]
        if isinstance(value, list) and value:
            return [head, *self._sequence(found, path, indent)]
        if isinstance(value, str) and "\n" in value:
            sign = "|" if value.endswith("\n") else "|-"
            text = self._replaced(value, path)
            return [f"{head} {sign}", *(" " * (indent + 2) + line for line in text.splitlines())]
        return [f"{head} {self._scalar(value, path)}"]

    def _merged(self, head: str, body: list[str], path: str) -> list[str]:
        define = f"{self.label}/{path}"
        mixed = f'mustMergeOverwrite (include "{define}" . | fromYaml) {MERGED[2]}'
        return [f'{{{{- define "{define}" }}}}', *body, "{{- end }}", head, f"{{{{- {mixed} | toYaml | nindent 2 }}}}"]  # fmt: skip

    def _sequence(self, found: Found, path: str, indent: int) -> list[str]:
        written = []
        named = {variant: dict(zip(_names(value), value, strict=True)) for variant, value in found.items()}  # fmt: skip
        for name in max(named.values(), key=len):
            at = {variant: elements.get(name, _ABSENT) for variant, elements in named.items()}
            inner = f"{path}/{name if _PLAIN.fullmatch(name) else '*'}"
            written.append(self._choice(at, partial(self._item, path=inner, indent=indent)))
        if self._is(*APPENDED[:2], path):
            given = ["{{- with " + self._filled(APPENDED[2], path) + " }}", f"{{{{- toYaml . | nindent {indent} }}}}", "{{- end }}"]  # fmt: skip
            written.append([("", given)])
        return _flat(written)

    def _item(self, found: Found, path: str, indent: int) -> list[str]:
        if not isinstance(next(iter(found.values())), dict):
            return self._value(" " * indent + "-", found, path, indent)
        body = self._mapping(found, path, indent + 2)
        if body[0].startswith("{{"):
            return [" " * indent + "-", *body]
        return [" " * indent + "- " + body[0].lstrip(), *body[1:]]

    def _is(self, label: str, at: str, path: str) -> bool:
        return bool(re.fullmatch(label, self.label) and re.fullmatch(at, path))

    def _filled(self, text: str, path: str) -> str:
        *_, parent, leaf = ["", *path.split("/")]
        for word, meant in {**self.words, "PARENT": parent, "LEAF": leaf}.items():
            text = text.replace(word, meant)
        return text

    def _replaced(self, text: str, path: str) -> str:
        text = text.replace("{{", "\0")
        for label, at, pattern, expression in SCALARS:
            if re.fullmatch(label, self.label) and re.search(at, path):
                text = re.sub(pattern, self._filled(expression, path), text)
        return text.replace("\0", '{{ "{{" }}')

    def _scalar(self, value: Any, path: str) -> str:
        if not isinstance(value, str):
            return self._replaced(json.dumps(value), path)
        text = self._replaced(value, path)
        if _PLAIN.fullmatch(text) and not _NOT_TEXT.fullmatch(text):
            return text
        parts = _EXPRESSION.split(text)  # every second one is an expression
        return '"' + "".join(part if n % 2 else json.dumps(part)[1:-1] for n, part in enumerate(parts)) + '"'  # fmt: skip


def _mergeable(values: list[Any]) -> bool:
    """Whether these can be written as one, with conditions inside."""
    if all(value == values[0] for value in values):
        return True
    if all(isinstance(value, dict) and value for value in values):
        return True
    if not all(isinstance(value, list) and value for value in values):
        return False
    names = [_names(value) for value in values]
    longest = max(names, key=len)
    return all(isinstance(value[0], dict) for value in values) and all(
        some == [name for name in longest if name in some] for some in names
    )


def _names(elements: list[Any]) -> list[str]:
    """By what an element of a list is the same in two variants: its name, or all of it; of texts, its place."""
    if not isinstance(elements[0], dict):
        return [str(place) for place in range(len(elements))]
    names = [one.get("name", "") for one in elements]
    unique = "" not in names and len(set(names)) == len(names)
    return names if unique else [json.dumps(one, sort_keys=True) for one in elements]


def _flat(choices: list[Choice]) -> list[str]:
    """One after the other, those with the same conditions together."""
    lines: list[str] = []
    for terms, group in groupby(choices, key=lambda choice: [term for term, _ in choice]):
        bodies = [list(chain.from_iterable(part)) for part in zip(*([body for _, body in choice] for choice in group), strict=True)]  # fmt: skip
        if terms == [""]:
            lines += bodies[0]
            continue
        for place, (term, body) in enumerate(zip(terms, bodies, strict=True)):
            if body or place + 1 < len(terms):
                lines.append(f"{{{{- {'else ' if place else ''}{'if ' + term if term else ''}".rstrip() + " }}")  # fmt: skip
                lines += body
        lines += ["{{- end }}"] * bool(terms)
    return lines
