"""Documents of runs: read, merged and checked."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from triforge.config.problems import problem
from triforge.config.run_config import RunConfig
from triforge.config.sections import AlgorithmSection
from triforge.errors import ConfigError

_S = TypeVar("_S", bound=BaseModel)
_NAMED: Final = 100  # problems of a document

MOVED: Final = {
    "phases": "methods.rloop",
    "trainer.aux": "methods.envrl",
    "adaptation.mixed_with": "adaptation.controller",
    "monitor": "methods.starpo",
    "reward.mode": "methods.spark",
    "reward.recycled": "methods.spark.questions",
    "adaptation.ladder": "methods.rlve",
    "reward.beta": "methods.istar.beta",
    "reward.contrast": "methods.vlm_rl",
    "env_adapter.team_weight": "methods.at_grpo.team_weight",
    "env_adapter.candidates": "methods.pa_rl.candidates",
    "env_adapter.edits": "methods.pa_rl.edits",
    "trainer.action_critic": "methods.pa_rl",
}
"""Sections and options of older versions, and where each is now."""
RENAMED: Final = {
    "adaptation.controller": {"ladder": "rlve"},
    "reward.kind": {"implicit": "istar", "vlm_contrast": "vlm_rl", "unit_tests": "cure"},
    "env_adapter.strategy": {"tree": "at_grpo", "critic_best_of_k": "pa_rl"},
}
"""Values of options in older versions, and their names now."""


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the fields of `over`, section by section; neither is changed.

    Another `algorithm.preset` drops the overrides of the preset that it replaces.
    """
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        if not (isinstance(old, Mapping) and isinstance(value, Mapping)):
            merged[key] = value
            continue
        if key == "algorithm" and value.get("preset", _preset(old)) != _preset(old):
            old = {name: field for name, field in old.items() if name != "overrides"}
        merged[key] = merge(old, value)
    return merged


def _preset(algorithm: Mapping[str, Any]) -> Any:
    return algorithm.get("preset", AlgorithmSection().preset)


def with_assignments(document: Mapping[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """Return a document with single fields (`run.steps=5`) set, a preset before the options that change it."""
    over: dict[str, Any] = {}
    for item in sorted(assignments, key=lambda text: not text.startswith("algorithm.preset")):
        over = merge(over, assignment(item))
    return merge(document, over)


def assignment(text: str) -> dict[str, Any]:
    """Return one field as an override: `{"run": {"steps": 5}}` for `run.steps=5`. The value is JSON, else a string."""
    path, equals, literal = text.partition("=")
    if not equals or not path:
        raise ConfigError(f"override: given {text!r}, expected section.field=value")
    try:
        value: Any = json.loads(literal)
    except ValueError:
        value = literal
    for part in reversed(path.split(".")):
        value = {part: value}
    return dict(value)


def parse(document: Mapping[str, Any]) -> RunConfig:
    """Return the config that a document describes.

    Raises:
        ConfigError: an option was moved or renamed, or as `checked`.
    """
    moved = [
        f"{old}: unknown field; it was moved to {new}"
        for old, new in MOVED.items()
        if _at(document, old) is not None
    ]
    renamed = [
        f"{option}: given {value!r}, which is {names[value]!r} now"
        for option, names in RENAMED.items()
        if isinstance(value := _at(document, option), str) and value in names
    ]
    if problems := (*moved, *renamed):
        raise ConfigError("; ".join(problems), problems=problems)
    return checked(RunConfig, document)


def _at(document: Any, path: str) -> Any:
    """Return the value at a place of a document; None if it has none."""
    for part in path.split("."):
        document = document.get(part) if isinstance(document, Mapping) else None
    return document


def checked(kind: type[_S], fields: Mapping[str, Any], *, variables: bool = False) -> _S:
    """Return validated fields; `variables` are settings from the environment.

    Raises:
        ConfigError: one sentence a problem: the field, what was given, what is allowed.
    """
    try:
        return kind.model_validate(dict(fields))
    except ValidationError as error:
        first = error.errors(include_url=False)[:_NAMED]
        problems = tuple(problem(item, kind, variable=variables) for item in first)
        raise ConfigError("; ".join(problems), problems=problems) from None


def load(path: str | Path, overrides: Mapping[str, Any] | None = None) -> RunConfig:
    """Read a TOML document, merge `overrides` into it and check the whole."""
    return parse(merge(read_document(path), overrides or {}))


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document as TOML."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(as_toml(document), encoding="utf-8")


def as_toml(document: Mapping[str, Any]) -> str:
    """Return a document as TOML."""
    return "".join(_toml(document))


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
