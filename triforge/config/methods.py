"""The section `[methods]`: which methods a run uses, and the options of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict, SerializeAsAny, ValidationError, model_validator

from triforge.algorithms.algorithm import Algorithm
from triforge.config.base import Section
from triforge.config.problems import problem
from triforge.errors import ConfigError
from triforge.methods import Method, find


class MethodOptions(Section):
    """The options of a method, section `[methods.NAME]`; the properties are what services read of any method."""

    @property
    def changed(self) -> list[str]:
        """The options that differ from their defaults."""
        defaults = type(self)()
        return [name for name, value in self if value != getattr(defaults, name)]

    @property
    def judge_is_policy(self) -> bool:
        """Whether the policy answers for the reward model, which has no engines of its own."""
        return False

    @property
    def needs_policy(self) -> str:
        """The option, as a user writes it, that needs the policy's tokens, weights or screenshots; empty if none does.

        A run whose policy another trainer has is refused with it.
        """
        return ""

    @property
    def runs_read(self) -> Mapping[str, str]:
        """Other runs that the method reads the records of, by the option that names one."""
        return {}

    def addresses(self, config: Any) -> tuple[str, ...]:  # noqa: ARG002
        """Return the addresses of `Settings` that a run needs, without `_url`."""
        return ()

    def of_judge(self, algorithm: Algorithm) -> Algorithm:
        """Return the algorithm of a judge's learner in runs with the step scores of the method."""
        return algorithm.of_reward_model()

    @property
    def reads_success(self) -> bool:
        """Whether the method needs episodes that succeed or fail; scores alone are not enough."""
        return False


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


def options_of(method: Method) -> type[MethodOptions]:
    """Return the type of a method's options."""
    return method.options or MethodOptions


def _options(name: str, value: Any) -> Any:
    if isinstance(value, MethodOptions):
        return value
    try:
        kind = options_of(find(name))
        return kind.model_validate(value)
    except ConfigError as error:
        raise ValueError(error.detail) from None
    except ValidationError as error:
        raise ValueError(problem(error.errors()[0], kind, section=name)) from None
