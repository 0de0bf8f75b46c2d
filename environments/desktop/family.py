"""The desktop as an environment family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from environments.desktop import generator, tasks
from environments.desktop.session import AGENTS, Desktop
from environments.desktop.tasks import DesktopTask, PlayOptions, size_of, tree_of
from environments.gui import replay
from environments.gui.actions import Action, call
from environments.gui.episode import ComputerEpisode
from environments.gui.rewriting import ASK, FIELDS, ScreenFamily
from triforge.environments.kit import closed_menu, expect_fields, proofs
from triforge.environments.registry import About
from triforge.errors import EnvError, InputError
from triforge.rollout.protocols import RewriteMenu, TaskDraft
from triforge.types import CheckResult, Direction, Params, Task


class DesktopComputer(Desktop):
    """A desktop that has just started with a task's files; the actions before the agent's turn are played."""

    def __init__(self, task: DesktopTask, options: PlayOptions) -> None:
        super().__init__(
            options.width,
            options.height,
            lambda home: tasks.lay_out(task, home),
            settle_s=options.settle_s,
        )
        self._limit = options.disk_limit
        self.get = tasks.getter(self.home, self.windows)

        def act(action: Action) -> str:
            if action.ref is not None:
                return "there are no numbered elements"
            self.act(action)
            solved = task.evaluator.score(self.get) == 1.0
            return "the task is solved after it" if solved else ""

        try:
            replay.play(task, act, "desktop")
        except BaseException:
            self.stop()
            raise

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

    with_success, asks = replay.with_success, replay.asks

    def rewrite_menu(self, task: Task, direction: Direction) -> RewriteMenu:
        """Return the other starts inside a success, and for whole tasks the choices of variant and hint."""
        given, menu = self.read(task.params), super().rewrite_menu(task, direction)
        here = {"variant": given.known[given.place or 0][0], "hint": "yes" if given.hint else "no"}
        inside = [{**here, "start": start} for start in replay.starts(given, direction)]
        others = [{**answer, "start": replay.WHOLE} for answer in menu.combinations]
        if menu.json_schema and not inside and not given.played:
            return menu
        about = menu.description.partition(ASK)[0] + replay.described(given) * bool(inside)
        return closed_menu(about, inside if given.played else [*inside, *others])

    def apply_rewrite(self, task: Task, answer: dict[str, str]) -> TaskDraft:
        """Return the task with another start, with another variant's instruction and verifier, or with a hint."""
        if set(answer) == {"hint"}:
            return super().apply_rewrite(task, answer)
        expect_fields(answer, (*FIELDS, "start"), "desktop rewrite")
        start = replay.at_start(self.read(task.params), answer["start"], self.name)
        draft = super().apply_rewrite(task, {name: answer[name] for name in FIELDS})
        return self.draft(self.read({**draft.params, **start}))

    def check_rewrite(self, parent: Task, candidate: TaskDraft) -> list[CheckResult]:
        """Prove also that the verifier does not hold on the files as they are laid out, nor after the actions played before."""
        try:
            before, after = self.read(parent.params), self.read(candidate.params)
        except InputError as error:
            return proofs(("well_formed", False, error.detail))
        if before.played or after.played:
            announces = candidate.instruction == after.announced
            made = replay.start_proofs(before, after) + proofs(("announced", announces))
        else:
            params = self.write(before.model_copy(update={"recorded": after.recorded}))
            made = super().check_rewrite(parent.model_copy(update={"params": params}), candidate)
        if all(result.passed for result in made):
            fault = self._fault(after)
            made += proofs(("not_satisfied_at_reset", not fault, fault))
        return made

    def _fault(self, given: DesktopTask) -> str:
        """Return why a task cannot begin, or has ended before it begins."""
        try:
            self.check(given)
            if given.played:
                DesktopComputer(given, PlayOptions()).stop()
        except (InputError, EnvError) as error:
            return error.detail
        return ""

    def drift(self, root: Params, candidate: Params) -> float:
        """Return the distance of variant and hint, and a quarter for another start."""
        moved = self.read(root).done != self.read(candidate).done
        return min(1.0, super().drift(root, candidate) + 0.25 * moved)

    def generate(self, *, count: int, seed: int, options: Params) -> list[Params]:
        made = generator.generate(count, seed, options)
        return [self.validate(params).params for params in made]

    def begin(
        self, given: DesktopTask, options: PlayOptions, announced: str, _seed: int
    ) -> ComputerEpisode:
        return ComputerEpisode(
            self.name,
            replay.shown(announced, given),
            given.evaluator,
            lambda: DesktopComputer(given, options),
            given.horizon,
            options,
            sees=options.observe != "files",
            reads=options.observe != "screenshot",
        )

    def solution(self, given: DesktopTask, options: PlayOptions) -> Sequence[str] | None:
        """Return the rest of the task's own solution, entered into the terminal; None when the task has none, or began otherwise."""
        infeasible = given.evaluator.infeasible
        if (not given.solution and not infeasible) or (given.played and given.recorded):
            return None
        rest = given.solution[given.played :]
        if options.actions == "command":
            return [*(f"run {line}" for line in rest), "fail" if infeasible else "done"]
        typed = [call("type", text=f"{line}\n") for line in rest]
        return [*typed, call("terminate", status="failure" if infeasible else "success")]


FAMILY: Final = DesktopFamily()
