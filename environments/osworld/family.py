"""OSWorld as an environment family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from environments.gui.episode import ComputerEpisode
from environments.gui.rewriting import ScreenFamily
from environments.osworld.machine import MachineComputer, lease_of
from environments.osworld.options import OsworldTask, PlayOptions
from triforge.environments.egress import EgressPolicy, here, place_of
from triforge.environments.kit import parse_model
from triforge.environments.registry import About
from triforge.errors import InputError
from triforge.rollout.protocols import Environment
from triforge.types import Params


class OsworldFamily(ScreenFamily[OsworldTask, PlayOptions]):
    """The family `osworld`; README.md lists the supported part of OSWorld."""

    name = "osworld"
    about = About(
        what="OSWorld's task files on machines behind its HTTP control server; not run against a real VM",
        tasks="JSON files (369 of OSWorld)",
        licence="Apache-2.0 (own adapter; OSWorld's tasks are Apache-2.0)",
        papers="RLAnything",
    )
    params, play_options = OsworldTask, PlayOptions
    blocks = True

    def __init__(self, egress: Callable[[], EgressPolicy] = here) -> None:
        self._egress = egress

    def kind(self, given: OsworldTask) -> str:
        return given.related_apps[0] if len(given.related_apps) == 1 else "multi_apps"

    def generate(self, *, count: int, seed: int, options: Params) -> list[Params]:  # noqa: ARG002
        raise InputError(
            "osworld: tasks are OSWorld's JSON files, not generated; upload them as the pool's rows (params: the file)"
        )

    def make(self, options: Params) -> Environment:
        play = parse_model(PlayOptions, options, "osworld options")
        egress = self._egress()
        if play.docker is not None:
            egress.demand_docker("osworld options: field docker")
        for url in play.machines:  # no name is looked up: the operator lists it
            egress.demand(*place_of(url), "osworld options: field machines", looked_up=False)
        return super().make(options)

    def begin(
        self, given: OsworldTask, options: PlayOptions, announced: str, _seed: int
    ) -> ComputerEpisode:
        lease, egress = lease_of(options), self._egress()
        return ComputerEpisode(
            self.name,
            announced,
            given.evaluator,
            lambda: MachineComputer(given, options, lease, egress),
            given.horizon,
            options,
            abandon=lambda: lease.end(sound=True),
        )


FAMILY: Final = OsworldFamily()
