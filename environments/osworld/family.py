"""OSWorld as an environment family: what the rest of triforge sees of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from environments.gui.episode import ComputerEpisode, Screen
from environments.osworld.machine import Lease, MachineComputer
from environments.osworld.options import OsworldTask, PlayOptions
from triforge.environments.egress import Reach, here, place_of
from triforge.environments.kit import NeverRewritten, expect_announced, parse_model
from triforge.environments.registry import About
from triforge.errors import InputError
from triforge.rollout.protocols import Environment, TaskDraft
from triforge.types import Params, Task


class OsworldFamily(NeverRewritten):
    """The family `osworld`; see README.md beside this file for what of OSWorld is supported."""

    name = "osworld"
    about = About(
        what="OSWorld's task files on machines behind its HTTP control server; not run against a real VM",
        tasks="JSON files (369 of OSWorld)",
        licence="Apache-2.0 (own adapter; OSWorld's tasks are Apache-2.0)",
        papers="RLAnything",
    )

    def __init__(self, reach: Callable[[], Reach] = here) -> None:
        self._reach = reach

    def validate(self, params: Params) -> TaskDraft:
        """Check and normalise a task file of OSWorld."""
        task = parse_model(OsworldTask, params, "osworld params")
        kind = task.related_apps[0] if len(task.related_apps) == 1 else "multi_apps"
        return TaskDraft(
            params=task.model_dump(mode="json"), instruction=task.instruction, kind=kind[:64]
        )

    def generate(self, *, count: int, seed: int, options: Params) -> list[Params]:  # noqa: ARG002
        """Refuse: the tasks are files."""
        raise InputError(
            "osworld: tasks are OSWorld's JSON files, not generated; upload them as the pool's rows (params: the file)"
        )

    def make(self, options: Params) -> Environment:
        """A fresh environment under `options` (see `PlayOptions`)."""
        play = parse_model(PlayOptions, options, "osworld options")
        reach = self._reach()
        if play.docker is not None:
            reach.demand_docker("osworld options: field docker")
        for (
            url
        ) in play.machines:  # whoever looks after them names them: no name is looked up to judge it
            reach.demand(*place_of(url), "osworld options: field machines", looked_up=False)

        def begin(task: Task) -> ComputerEpisode:
            given = parse_model(OsworldTask, task.params, "osworld params")
            expect_announced(self.name, task, given.instruction)
            lease = Lease(play)
            return ComputerEpisode(
                self.name,
                instruction=given.instruction,
                evaluator=given.evaluator,
                begin=lambda: MachineComputer(given, play, lease, reach),
                horizon=given.horizon,
                malformed_limit=play.malformed_limit,
                actions=play.actions,
                sees=True,
                reads=False,
                verify_s=play.verify_s,
                guide=play.guide,
                abandon=lease.end,
            )

        return Screen(self.name, begin)

    def gold(self, task: Task, options: Params) -> None:  # noqa: ARG002
        """OSWorld's files carry no solutions."""
        return


FAMILY: Final = OsworldFamily()
