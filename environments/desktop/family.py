"""The desktop as an environment family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from environments.desktop import generator, tasks
from environments.desktop.session import AGENTS, Desktop
from environments.desktop.tasks import DesktopTask, PlayOptions, size_of, tree_of
from environments.gui.actions import call
from environments.gui.episode import ComputerEpisode
from environments.gui.rewriting import ScreenFamily
from triforge.environments.kit import proofs
from triforge.environments.registry import About
from triforge.errors import InputError
from triforge.rollout.protocols import TaskDraft
from triforge.types import CheckResult, Params, Task


class DesktopComputer(Desktop):
    """A desktop that has just started with a task's files."""

    def __init__(self, task: DesktopTask, options: PlayOptions) -> None:
        super().__init__(
            options.width,
            options.height,
            lambda home: tasks.lay_out(task, home),
            settle_s=options.settle_s,
        )
        self._limit = options.disk_limit
        self.get = tasks.getter(self.home, self.windows)

    def listing(self) -> str:
        return "files:\n" + (tree_of(self.home) or "(none)")

    def overrun(self) -> str:
        used = sum(size_of(self.folder / name, self._limit) for name in AGENTS)
        return "Failed: the disk is full." if used >= self._limit else ""

    def settle(self) -> None:
        """Do nothing: tasks of the desktop end as the agent left them."""


class DesktopFamily(ScreenFamily[DesktopTask, PlayOptions]):
    """The family `desktop`; README.md explains it."""

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
    params, play_options = DesktopTask, PlayOptions
    blocks = True

    def kind(self, given: DesktopTask) -> str:
        return given.id.partition("-")[0]

    def check(self, given: DesktopTask) -> None:
        """Refuse a task that is solved at reset or cannot be laid out; of one with variants, each of them."""
        for _, changes, _ in given.known:
            tasks.expect_open(given.model_copy(update=changes))

    def check_rewrite(self, parent: Task, candidate: TaskDraft) -> list[CheckResult]:
        """Prove also that the verifier does not hold on the files as they are laid out."""
        made = super().check_rewrite(parent, candidate)
        if all(result.passed for result in made):
            fault = ""
            try:
                self.check(self.read(candidate.params))
            except InputError as error:
                fault = error.detail
            made += proofs(("not_satisfied_at_reset", not fault, fault))
        return made

    def generate(self, *, count: int, seed: int, options: Params) -> list[Params]:
        made = generator.generate(count, seed, options)
        return [self.validate(params).params for params in made]

    def begin(
        self, given: DesktopTask, options: PlayOptions, announced: str, _seed: int
    ) -> ComputerEpisode:
        return ComputerEpisode(
            self.name,
            announced,
            given.evaluator,
            lambda: DesktopComputer(given, options),
            given.horizon,
            options,
            sees=options.observe != "files",
            reads=options.observe != "screenshot",
        )

    def solution(self, given: DesktopTask, options: PlayOptions) -> Sequence[str] | None:
        """Return the task's own solution, entered into the terminal; None when the task has none."""
        infeasible = given.evaluator.infeasible
        if not given.solution and not infeasible:
            return None
        if options.actions == "command":
            return [*(f"run {line}" for line in given.solution), "fail" if infeasible else "done"]
        typed = [call("type", text=f"{line}\n") for line in given.solution]
        return [*typed, call("terminate", status="failure" if infeasible else "success")]


FAMILY: Final = DesktopFamily()
