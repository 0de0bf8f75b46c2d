"""The desktop as an environment family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pydantic import JsonValue

from environments.desktop import generator, tasks
from environments.desktop.session import AGENTS, Desktop
from environments.desktop.tasks import DesktopTask, PlayOptions, size_of, tree_of
from environments.gui.actions import Action, call
from environments.gui.episode import ComputerEpisode, Screen
from triforge.environments.kit import NeverRewritten, expect_announced, parse_model
from triforge.environments.registry import About
from triforge.rollout.protocols import Environment, TaskDraft
from triforge.types import Params, Task


class DesktopComputer:
    """A desktop that has just started with a task's files.

    Args:
        task: what is laid out.
        options: size of the screen, and how long its shell is waited for.
    """

    def __init__(self, task: DesktopTask, options: PlayOptions) -> None:
        self._options = options
        self._desktop = Desktop(
            options.width, options.height, lambda home: tasks.lay_out(task, home)
        )
        self._get = tasks.getter(self._desktop.home, self._desktop.windows)

    def act(self, action: Action) -> None:
        """Perform an action and let the shell answer."""
        self._desktop.act(action, settle_s=self._options.settle_s)

    def screenshot(self) -> bytes:
        """The screen as a PNG file."""
        return self._desktop.screenshot()

    def listing(self) -> str:
        """The names of files and folders."""
        return "files:\n" + (tree_of(self._desktop.home) or "(none)")

    def overrun(self) -> str:
        """Whether the agent's files have outgrown the disk."""
        limit = self._options.disk_limit
        used = sum(size_of(self._desktop.folder / name, limit) for name in AGENTS)
        return "Failed: the disk is full." if used >= limit else ""

    def get(self, spec: Mapping[str, JsonValue]) -> JsonValue:
        """What an evaluator asks for."""
        return self._get(spec)

    def settle(self) -> None:
        """Nothing: tasks of the desktop end as the agent left them."""

    def stop(self) -> None:
        """End every process and remove the folder."""
        self._desktop.stop()


class DesktopFamily(NeverRewritten):
    """The family `desktop`; see README.md beside this file for the options."""

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
        """Make `count` tasks under `options` (see `GeneratorOptions`)."""
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
