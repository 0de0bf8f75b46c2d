"""The desktop as an environment family: what the rest of triforge sees of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from environments.desktop import generator, tasks
from environments.desktop.computer import DesktopComputer
from environments.desktop.options import DesktopTask, PlayOptions
from environments.gui.actions import call
from environments.gui.computer import ComputerEpisode
from environments.gui.shell import Screen
from triforge.environments.episode import NeverRewritten, expect_announced
from triforge.environments.parsing import parse_model
from triforge.environments.registry import About
from triforge.rollout.protocols import Environment, TaskDraft
from triforge.types import Params, Task


class DesktopFamily(NeverRewritten):
    """The family `desktop`; see README.md beside this file for the knobs."""

    name = "desktop"
    about = About(
        what="a small desktop: a terminal and a window manager, with verifiers of files and settings in OSWorld's shape",
        tasks="generated, six sorts; JSON files",
        licence="Apache-2.0 (own); X.Org, openbox, xterm and xdotool are MIT or GPL programs of Debian",
        programs=(
            ("Xvfb", "xvfb"),
            ("openbox", "openbox"),
            ("xterm", "xterm"),
            ("xdotool", "xdotool"),
            ("bwrap", "bubblewrap"),
            ("prlimit", "util-linux"),
        ),
        papers="RLAnything (there: OSWorld)",
        steps_per_s=10,
    )

    def validate(self, params: Params) -> TaskDraft:
        """Check and normalise a task."""
        task = _read(params)
        tasks.expect_open(task)
        kind = task.id.partition("-")[0][:64]
        return TaskDraft(
            params=task.model_dump(mode="json"), instruction=task.instruction, kind=kind
        )

    def generate(self, *, count: int, seed: int, options: Params) -> list[Params]:
        """Make `count` tasks under the knobs in `options` (see `Knobs`)."""
        made = generator.generate(count, seed, options)
        return [self.validate(params).params for params in made]

    def make(self, options: Params) -> Environment:
        """A fresh environment under `options` (see `PlayOptions`)."""
        play = parse_model(PlayOptions, options, "desktop options")

        def begin(task: Task) -> ComputerEpisode:
            given = _read(task.params)
            expect_announced(self.name, task, given.instruction)
            return ComputerEpisode(
                self.name,
                instruction=given.instruction,
                evaluator=given.evaluator,
                begin=lambda: DesktopComputer(given, play),
                horizon=given.horizon,
                malformed_limit=play.malformed_limit,
                actions=play.actions,
                sees=play.observe != "files",
                reads=play.observe != "screenshot",
                verify_s=play.verify_s,
                guide=play.guide,
            )

        return Screen(self.name, begin)

    def gold(self, task: Task, options: Params) -> Sequence[str] | None:
        """The task's own solution, entered into the terminal; None when the task has none."""
        given = _read(task.params)
        play = parse_model(PlayOptions, options, "desktop options")
        if not given.solution and not given.evaluator.infeasible:
            return None
        if play.actions == "command":
            said = [f"run {line}" for line in given.solution]
            return [*said, "fail" if given.evaluator.infeasible else "done"]
        status = "failure" if given.evaluator.infeasible else "success"
        typed = [call("type", text=f"{line}\n") for line in given.solution]
        return [*typed, call("terminate", status=status)]


def _read(params: Params) -> DesktopTask:
    return parse_model(DesktopTask, params, "desktop params")


FAMILY: Final = DesktopFamily()
