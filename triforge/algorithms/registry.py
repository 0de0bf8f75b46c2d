"""Parts of the arithmetic by name, and the options that each part declares.

A part (an estimator, a loss) is one module: its function, and its options as an `Options` model with types, defaults,
ranges, descriptions and the rules about them. Modules of the core register themselves when their package is searched, methods
list the parts that they bring, and any other is named by its path, `package.module:name`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import NoneType
from typing import Any, Generic, Literal, Self, TypeVar, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from triforge.errors import ConfigError
from triforge.methods import find, known, load_part

T = TypeVar("T")


class Registry(Generic[T]):
    """Parts of one kind.

    Args:
        what: the option that names one, for messages.
        package: its modules register the parts of the core; it is imported when the first part is looked for.
        field: the field of `Method` that lists such parts of a method, if methods bring any.
    """

    def __init__(self, what: str, kind: type[T], package: str, *, field: str = "") -> None:
        self._what, self._kind, self._package, self._field = what, kind, package, field
        self._parts: dict[str, T] = {}
        self._searched = False

    def add(self, name: str, part: T, module: str = "") -> T:
        """Register a part by name if its module is one of the package's; another part is found by its path."""
        if not module or module.startswith(f"{self._package}."):
            self._parts[name] = part
        return part

    def register(
        self, name: str, options: type[Options] | None = None, **attributes: Any
    ) -> Callable[[Callable[..., Any]], T]:
        """Make a part of a function: its name, its options, and what else the kind of part has as attributes."""

        def registered(function: Callable[..., Any]) -> T:
            make: Callable[..., T] = self._kind
            own = NoOptions if options is None else options
            part = make(name=name, options=own, function=function, **attributes)
            return self.add(name, part, function.__module__)

        return registered

    def names(self) -> list[str]:
        """Return the names of the parts of the core and of methods."""
        return sorted({*self._core(), *self._of_methods()})

    def _core(self) -> dict[str, T]:
        if not self._searched:
            self._searched = True
            path = importlib.import_module(self._package).__path__
            for module in pkgutil.iter_modules(path, f"{self._package}."):
                importlib.import_module(module.name)
        return self._parts

    def _of_methods(self) -> dict[str, str]:
        """Return the paths of the parts of methods by name."""
        listed = (getattr(find(name), self._field) for name in known() if self._field)
        return {name: path for parts in listed for name, path in parts.items()}

    def find(self, name: str) -> T:
        """Return the part of that name or path.

        Raises:
            ConfigError: there is none.
        """
        if name in self._core():
            return self._parts[name]
        path = name if ":" in name else self._of_methods().get(name, "")
        why = ""
        if path:
            try:
                part = load_part(path, self._what)
            except ConfigError as error:
                why = f" ({error.detail})"
            else:
                if isinstance(part, self._kind):
                    return part
                why = f" (it is no {self._kind.__name__})"
        raise ConfigError(
            f"{self._what}: given {name!r}{why}, allowed one of {self.names()} or the path of another, "
            "'package.module:name'"
        )


@dataclass(frozen=True, slots=True)
class Only:
    """Metadata of an option that is read under a condition only; anything else turned there is refused.

    Attributes:
        read: whether the algorithm reads the option.
        needs: what would read it, and why nothing else does.
    """

    read: Callable[[Any], bool]
    needs: str


class Options(BaseModel):
    """Options of one part: frozen, strict, unknown ones refused, every number finite."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @classmethod
    def checked(cls, given: dict[str, Any]) -> Self:
        """Validate values; a ConfigError names the option, what was given and what is allowed."""
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            name = str(error.errors()[0]["loc"][0])
            value = list(given[name]) if isinstance(given[name], tuple) else given[name]
            raise ConfigError(
                f"{name}: given {value!r}, allowed {allowed(cls.model_fields[name])}"
            ) from None

    def conflicts(self, algorithm: Any) -> Iterator[tuple[bool, str]]:  # noqa: ARG002
        """Yield whether each impossible combination is given, and the sentence that refuses it.

        Args:
            algorithm: the `CoreOptions` with which these are used.
        """
        yield from ()


class NoOptions(Options):
    """A part without options of its own."""


def allowed(field: FieldInfo) -> str:
    """Return in words the allowed values of an option."""
    kinds = get_args(field.annotation) or (field.annotation,)
    if get_origin(field.annotation) is Literal:
        return f"one of {list(kinds)}"
    kind = next(k for k in kinds if k is not NoneType)
    if kind is bool:
        words = "true or false"
    elif get_origin(kind) is tuple:
        words = (
            "two numbers [low, high]"
            if len(get_args(kind)) == 2
            else f"{len(get_args(kind))} whole numbers"
        )
    elif kind is str:
        path = "the path of another, 'package.module:name'"
        words = f"one of {field.examples} or {path}" if field.examples else "a text"
    else:
        words = ("a whole number" if kind is int else "a number") + _limits(field)
    return f"{words} or 'none'" if NoneType in kinds else words


def _limits(field: FieldInfo) -> str:
    low, high = "", ""
    for item in field.metadata:
        if isinstance(item, Ge):
            low = f" from {item.ge:g}"
        elif isinstance(item, Gt):
            low = f" above {item.gt:g}"
        elif isinstance(item, Le):
            high = f" to {item.le:g}"
        elif isinstance(item, Lt):
            high = f" below {item.lt:g}"
    return low + high
