"""Controllers of adaptation by name: the ones of the core, and those of methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from triforge.errors import ConfigError
from triforge.methods import Controller, find, known

CONTROLLERS: Final[Mapping[str, Controller]] = {
    "none": Controller(),
    "llm_rewrite": Controller(
        part="services.env_adapter.adaptation.controllers:LlmRewrite",
        rewrites=True,
        reads_notes=True,
    ),
    "ladder": Controller(
        part="services.env_adapter.adaptation.ladder:LadderController", needs_levels=True
    ),
}


def find_controller(name: str) -> Controller:
    """Return the controller of that name: one of the core, or that of a method, by its name or path.

    Raises:
        ConfigError: there is no such controller.
    """
    if name in CONTROLLERS:
        return CONTROLLERS[name]
    controller = find(name).controller if ":" in name or name in known() else None
    if controller is None:
        methods = [other for other in known() if find(other).controller]
        names = ", ".join(repr(other) for other in [*CONTROLLERS, *methods])
        raise ConfigError(
            f"controller: given {name!r}, allowed {names}, or the path of a method with a controller, "
            "'package.module:METHOD'"
        )
    return controller
