"""Reading, laying over and checking documents."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from pydantic import BaseModel, ValidationError

from triforge.config.run_config import RunConfig
from triforge.config.sections import AlgorithmSection
from triforge.errors import ConfigError

_S = TypeVar("_S", bound=BaseModel)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Lay `over` over `base`, section by section; neither is changed.

    Another `algorithm.preset` is that preset: the overrides that came with the one below it are left out.
    """
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        if not (isinstance(old, Mapping) and isinstance(value, Mapping)):
            merged[key] = value
            continue
        if key == "algorithm" and value.get("preset", _preset(old)) != _preset(old):
            old = {name: kept for name, kept in old.items() if name != "overrides"}
        merged[key] = merge(old, value)
    return merged


def _preset(algorithm: Mapping[str, Any]) -> Any:
    return algorithm.get("preset", AlgorithmSection().preset)


def with_assignments(document: Mapping[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """A document with single fields (`run.steps=5`) laid over it, a preset before the options that change it."""
    over: dict[str, Any] = {}
    for item in sorted(assignments, key=lambda text: not text.startswith("algorithm.preset")):
        over = merge(over, assignment(item))
    return merge(document, over)


def assignment(text: str) -> dict[str, Any]:
    """One field as an override: `run.steps=5` becomes `{"run": {"steps": 5}}`. The value is JSON, else a string."""
    path, found, given = text.partition("=")
    if not found or not path:
        raise ConfigError(f"override: given {text!r}, expected section.field=value")
    try:
        value: Any = json.loads(given)
    except ValueError:
        value = given
    for part in reversed(path.split(".")):
        value = {part: value}
    return dict(value)


def parse(document: Mapping[str, Any]) -> RunConfig:
    """Check a document. Errors: see `checked`."""
    return checked(RunConfig, document)


def checked(kind: type[_S], given: Mapping[str, Any], *, variables: bool = False) -> _S:
    """Validate what was given, fields or (as `variables`) settings out of the environment.

    Raises:
        ConfigError: one sentence a problem: the field, what was given, what is allowed.
    """
    try:
        return kind.model_validate(dict(given))
    except ValidationError as error:
        problems = tuple(_sentence(item, kind, variable=variables) for item in error.errors())
        raise ConfigError("; ".join(problems), problems=problems) from None


def _sentence(item: Mapping[str, Any], root: type[BaseModel], *, variable: bool) -> str:
    """One of pydantic's complaints as a sentence: the field, what was given, what is allowed."""

    def name(*path: str | int) -> str:
        return f"TRIFORGE_{str(path[0]).upper()}" if variable else ".".join(map(str, path))

    where, reason = item["loc"], str(item["msg"]).removeprefix("Value error, ")
    if not where:
        return reason
    said = f"{name(*where)}.{reason}"  # by a rule of the section, which names its field
    rule = item["type"] == "value_error" and isinstance(item["input"], Mapping)
    section = _section_of(root, where[:-1])
    unknown = item["type"] == "extra_forbidden" or (
        item["type"] == "model_type" and where[-1] not in section.model_fields
    )
    if unknown:
        known = ", ".join(map(name, section.model_fields))
        return f"{name(*where)}: unknown field; allowed are {known}"
    if rule:
        return said
    return f"{name(*where)}: given {item['input']!r}: {reason}"


def _section_of(root: Any, where: Iterable[str | int]) -> Any:
    """The section at a place of a document; that of any further name where a section takes such."""
    for part in where:
        known = getattr(root, "model_fields", {})
        more = get_args(get_type_hints(root).get("__pydantic_extra__")) if known else ()
        root = known[part].annotation if part in known else more[-1] if more else None
    return root


def load(path: str | Path, overrides: Mapping[str, Any] | None = None) -> RunConfig:
    """Read a TOML document, lay `overrides` over it and check the whole."""
    return parse(merge(read_document(path), overrides or {}))


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document as TOML."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(_toml(document)), encoding="utf-8")


def _toml(document: Mapping[str, Any], prefix: str = "") -> list[str]:
    lines: list[str] = []
    tables: list[str] = []
    for key, value in document.items():
        if isinstance(value, Mapping):
            name = f"{prefix}{key}"
            tables += [f"\n[{name}]\n", *_toml(value, f"{name}.")]
        else:
            lines.append(f"{key} = {json.dumps(value, ensure_ascii=False)}\n")
    return lines + tables


def read_document(path: str | Path) -> dict[str, Any]:
    """Read a TOML document without checking its fields."""
    try:
        with Path(path).open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise ConfigError(f"config file {path}: not found") from None
    except OSError as error:
        raise ConfigError(f"config file {path}: cannot be read: {error.strerror}") from None
    except ValueError as error:  # broken TOML, or bytes that are no UTF-8
        raise ConfigError(f"config file {path}: not valid TOML: {error}") from None
