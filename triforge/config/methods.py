"""The section `[methods]`: which methods a run uses, and the options of each."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, SerializeAsAny, ValidationError, model_validator

from triforge.config.base import Section
from triforge.errors import ConfigError
from triforge.methods import MethodOptions, find


class MethodsSection(Section):
    """One section a method, `[methods.NAME]`; NAME is an installed method or `package.module:METHOD`."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, SerializeAsAny[MethodOptions]]

    @model_validator(mode="before")
    @classmethod
    def _typed(cls, document: Any) -> Any:
        """Read each section by the options of its method."""
        if not isinstance(document, dict):
            return document
        return {name: _options(name, value) for name, value in document.items()}

    @property
    def named(self) -> dict[str, MethodOptions]:
        """The options of each method that the document names."""
        return dict(self.__pydantic_extra__)


def _options(name: str, value: Any) -> Any:
    if isinstance(value, MethodOptions):
        return value
    try:
        return find(name).options.model_validate(value)
    except ConfigError as error:
        raise ValueError(error.detail) from None
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise ValueError(
            f"{name}.{field}: given {first['input']!r}, expected: {first['msg']}"
        ) from None
