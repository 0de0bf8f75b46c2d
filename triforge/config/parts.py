"""Parts that a document names, each with its properties: the ones of the core, and those of methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Generic, TypeVar

from triforge.errors import ConfigError
from triforge.methods import Controller, Method, Scorer, Strategy, find, known

P = TypeVar("P", bound=Controller | Scorer | Strategy)


class Parts(Generic[P]):
    """Parts of one kind by name. The part of a method has the name of the method, or its path.

    Args:
        option: the option that names a part.
        field: the field of `Method` that holds such a part.
        core: the parts of the core.
        plain: makes a part of a path that leads to no method; without it such a path is refused.
    """

    def __init__(
        self,
        option: str,
        field: str,
        core: Mapping[str, P],
        plain: Callable[[str], P] | None = None,
    ) -> None:
        self._option, self._field, self._core, self._plain = option, field, core, plain

    def find(self, name: str) -> P:
        """Return the part of that name.

        Raises:
            ConfigError: there is none.
        """
        part = self._part(name)
        if part is None:
            raise ConfigError(f"{self._option}: given {name!r}, expected {self._names()}")
        return part

    def method(self, name: str) -> Method | None:
        """Return the method that the part of that name belongs to; None for the parts of the core and for plain paths."""
        if name in self._core or not (":" in name or name in known()):
            return None
        try:
            return find(name)
        except ConfigError:
            return None

    def checked(self, name: str) -> str:
        """Return a name that there is a part of; raise ValueError otherwise."""
        if self._part(name) is None:
            raise ValueError(f"expected {self._names()}")
        return name

    def _part(self, name: str) -> P | None:
        if name in self._core:
            return self._core[name]
        method = self.method(name)
        if method is None:
            return self._plain(name) if ":" in name and self._plain else None
        part: P | None = getattr(method, self._field)
        return part

    def _names(self) -> str:
        others = [name for name in known() if getattr(find(name), self._field)]
        return f"{', '.join(map(repr, [*self._core, *others]))} or a path, 'package.module:object'"


CONTROLLERS: Final = Parts(
    "adaptation.controller",
    "controller",
    {
        "none": Controller(),
        "llm_rewrite": Controller(
            part="services.env_adapter.adaptation.controllers:LlmRewrite",
            rewrites=True,
            reads_notes=True,
        ),
    },
)
STRATEGIES: Final = Parts("env_adapter.strategy", "strategy", {"group": Strategy()})
_SCORERS: Final = "services.reward.scorers"
SCORERS: Final = Parts(
    "reward.kind",
    "scorer",
    {
        "votes": Scorer(part=f"{_SCORERS}.votes:score", by_agent=True, trains_judge=True),
        "shuffled": Scorer(part=f"{_SCORERS}.shuffled:score"),
        "oracle": Scorer(part=f"{_SCORERS}.oracle:score", needs_labels=True),
        "praise": Scorer(part=f"{_SCORERS}.oracle:praise"),
        "log_ratio": Scorer(
            part=f"{_SCORERS}.log_ratio:score",
            one_player=True,
            needs_temperature_one=True,
            needs_reference=True,
        ),
    },
    plain=lambda path: Scorer(part=path, trains_judge=True),
)
