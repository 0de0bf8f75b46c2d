"""Sentences about what validation refuses: the field, what was given, what is allowed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel


def problem(
    item: Mapping[str, Any], root: type[BaseModel], *, variable: bool = False, section: str = ""
) -> str:
    """Return one entry of `ValidationError.errors()` as a sentence.

    Args:
        root: the model that refused its input; `section` is its place in a document.
        variable: the fields are environment variables (TRIFORGE_...).
    """

    def name(*path: str | int) -> str:
        if variable:
            return f"TRIFORGE_{str(path[0]).upper()}"
        return ".".join(filter(None, (section, *map(str, path))))

    where, reason = item["loc"], str(item["msg"]).removeprefix("Value error, ")
    of_section = item["type"] == "value_error" and isinstance(item["input"], Mapping)
    if not where:
        return f"{section}.{reason}" if section else reason
    parent = _model_at(root, where[:-1])
    unknown = item["type"] == "extra_forbidden" or (
        item["type"] == "model_type" and where[-1] not in parent.model_fields
    )
    if unknown:
        allowed = ", ".join(map(name, parent.model_fields))
        return f"{name(*where)}: unknown field; allowed are {allowed}"
    if of_section:  # the rule of a section names its field
        return f"{name(*where)}.{reason}"
    return f"{name(*where)}: given {item['input']!r}: {reason}"


def _model_at(root: Any, where: Iterable[str | int]) -> Any:
    """Return the section at a place of a document; a further name has the type of extra fields."""
    for part in where:
        known = getattr(root, "model_fields", {})
        more = get_args(get_type_hints(root).get("__pydantic_extra__")) if known else ()
        root = known[part].annotation if part in known else more[-1] if more else None
    return root
