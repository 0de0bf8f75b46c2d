"""MiniWoB++ as an environment family."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random
from typing import Final, Literal

from pydantic import Field

from environments.gui import replay
from environments.gui.actions import Action
from environments.gui.episode import Format, ReadOptions, ScreenEpisode
from environments.miniwob.browser import SHARED, Browsers
from environments.miniwob.page import MAX_SEED, Look, Page, Problem, listing, pages
from triforge.environments.kit import (
    Family,
    Strict,
    closed_menu,
    expect_fields,
    parse_model,
    proofs,
)
from triforge.environments.registry import About
from triforge.errors import EnvError, InputError
from triforge.rollout.protocols import Observation, Reset, RewriteMenu, StepResult, TaskDraft
from triforge.types import CheckResult, Direction, Params, Task

_EASY: Final = (
    "click-test", "click-test-2", "click-button", "click-button-sequence", "click-checkboxes", "click-dialog", "click-link",
    "click-option", "click-tab", "enter-password", "enter-text", "focus-text", "focus-text-2", "login-user",
)  # fmt: skip


class GeneratorOptions(Strict):
    """Options of the generator; README.md explains each."""

    tasks: list[str] = Field(default_factory=lambda: list(_EASY), min_length=1)
    horizon: int = Field(default=10, ge=1, le=200)


class PlayOptions(ReadOptions):
    """Options of a run; README.md explains each."""

    observe: Literal["elements", "screenshot", "both"] = "elements"
    actions: Format = "command"
    scale: int = Field(default=1, ge=1, le=6)
    success_at: float = Field(default=1.0, gt=0.0, le=1.0)
    browsers: int = Field(default=4, ge=1, le=64)


_COMMAND_GUIDE: Final = (
    "You use a web page. Each turn you see its elements, each with a number, and give one command: click NUMBER, "
    "type NUMBER TEXT, press KEY, scroll PIXELS, wait, done, fail. Answer with the command only."
)


class MiniWobEpisode(ScreenEpisode):
    """One problem being played; its announcement is the utterance of the page."""

    def __init__(self, problem: Problem, options: PlayOptions, browsers: Browsers) -> None:
        super().__init__("miniwob", problem.horizon, options, _COMMAND_GUIDE)
        self._problem = problem
        self._options = options
        self._lease = browsers.lease(options.browsers)
        self._shown: tuple[Page, Look] | None = None

    def start(self) -> Reset:
        page = Page(self._lease.begin(), self._problem.task, self._problem.seed)
        look = page.replay(self._problem)
        if look.utterance != self._problem.utterance:
            error = EnvError(
                f"miniwob: the page says {look.utterance[:200]!r}, its task announces {self._problem.utterance[:200]!r}"
            )
            error.retryable = False
            raise error
        self._shown = page, look
        announced = replay.shown(f"task: {look.utterance}", self._problem)
        return Reset(observation=self._observe(announced), system=self._guide)

    def _act(self, action: Action) -> StepResult:
        if action.kind == "terminate":  # a page that is done ends the episode by itself
            remark = "Failed: the page does not count the task as done."
            return self._end(str(action), success=False, remark=remark)
        page, look = self._page_and_look()
        if not page.act(action, look.nodes):
            return self._refuse("no_element", f"there is no element {action.ref}", str(action))
        look = page.look()
        self._shown = page, look
        if not look.over:
            return self._after("", str(action), valid=True)
        success = look.raw >= self._options.success_at
        remark = "Done." if success else f"Failed: the page gives {look.raw:g}."
        return self._end(str(action), success=success, remark=remark)

    def leave(self, *, sound: bool) -> None:
        self.done = True
        self._lease.end(sound=sound)

    def _page_and_look(self) -> tuple[Page, Look]:
        if self._shown is None:
            raise EnvError("miniwob: the page was never opened")
        return self._shown

    def _observe(self, remark: str) -> Observation:
        page, look = self._page_and_look()
        listed = "" if self._options.observe == "screenshot" or self.done else listing(look.nodes)
        images: tuple[bytes, ...] = ()
        if self._options.observe != "elements":
            images = (page.screenshot(self._options.scale),)
        return Observation(
            text="\n".join(part for part in (remark, listed) if part) or "The page is empty.",
            admissible=() if self.done else self._commands(look),
            images=images,
        )

    def _commands(self, look: Look) -> tuple[str, ...]:
        """Return the commands that do something: every element clicked, every quoted word typed into every field."""
        if self._options.actions != "command":
            return ()
        shown = [node for node in look.nodes if node.shown and node.ref > 0]
        words = [word for word in re.findall(r'"([^"\n]+)"', look.utterance) if word.isprintable()]
        typed = [f"type {node.ref} {word}" for node in shown if node.is_field for word in words]
        return tuple(dict.fromkeys([*(f"click {node.ref}" for node in shown), *typed]))


# similar pages, from easy to hard; a rewrite is another page of the row, for the same seed, with the utterance and verifier of it
_ROWS: Final = (
    ("book-flight-nodelay", "book-flight"),
    ("choose-date-easy", "choose-date-medium", "choose-date"),
    ("click-button", "click-button-sequence"),
    ("click-checkboxes", "click-checkboxes-transfer", "click-checkboxes-soft", "click-checkboxes-large"),
    ("click-collapsible-nodelay", "click-collapsible", "click-collapsible-2"),
    ("click-dialog", "click-dialog-2"),
    ("click-menu", "click-menu-2"),
    ("click-pie-nodelay", "click-pie"),
    ("click-tab", "click-tab-2-easy", "click-tab-2-medium", "click-tab-2", "click-tab-2-hard"),
    ("click-test", "click-test-2", "click-test-transfer"),
    ("copy-paste", "copy-paste-2"),
    ("drag-single-shape", "drag-shapes", "drag-shapes-2"),
    ("email-inbox-delete", "email-inbox-reply", "email-inbox-noscroll", "email-inbox", "email-inbox-nl-turk"),
    ("enter-text", "enter-text-dynamic", "enter-text-2"),
    ("focus-text", "focus-text-2"),
    ("form-sequence", "form-sequence-2", "form-sequence-3"),
    ("highlight-text", "highlight-text-2"),
    ("login-user", "login-user-popup"),
    ("read-table", "read-table-2"),
    ("scroll-text", "scroll-text-2"),
    ("simple-arithmetic", "simple-algebra"),
    ("social-media", "social-media-some", "social-media-all"),
    ("use-autocomplete-nodelay", "use-autocomplete"),
    ("use-slider", "use-slider-2"),
)  # fmt: skip


class MiniWobFamily(Family[Problem, PlayOptions]):
    """The family `miniwob`; README.md explains it."""

    name = "miniwob"
    about = About(
        what="MiniWoB++: small web pages in a headless Chromium, by element or by pixel, as text or as screenshots",
        tasks="130 pages, any number of seeds",
        licence="MIT (miniwob); Chromium is BSD-3-Clause",
        extra="miniwob",
        needs=("miniwob",),
        programs=(("chromium", "chromium"), ("chromedriver", "chromium-driver")),
        papers="RLAnything (there: OSWorld)",
        steps_per_s=13,
    )
    play_options, generator_options = PlayOptions, GeneratorOptions
    blocks = True
    measured = ("solvable", "instruction_agrees")

    def __init__(self, browsers: Browsers = SHARED) -> None:
        self._browsers = browsers

    def read(self, params: Params) -> Problem:
        """Read the parameters; a missing utterance is read from the page."""
        problem = parse_model(Problem, params, "miniwob params")
        _known([problem.task])
        if problem.utterance:
            return problem
        look = self._look(problem.model_copy(update={"played": 0}))
        return problem.model_copy(update={"utterance": look.utterance})

    def instruction(self, given: Problem) -> str:
        return given.utterance

    def kind(self, given: Problem) -> str:
        return given.task

    def drawn(self, rng: Random, wanted: GeneratorOptions) -> Params:
        _known(wanted.tasks)
        task, seed = rng.choice(wanted.tasks), rng.randint(0, MAX_SEED)
        return self.validate({"task": task, "seed": seed, "horizon": wanted.horizon}).params

    def begin(
        self, given: Problem, options: PlayOptions, _announced: str, _seed: int
    ) -> MiniWobEpisode:
        return MiniWobEpisode(given, options, self._browsers)

    with_success, asks = replay.with_success, replay.asks

    def rewrite_menu(self, task: Task, direction: Direction) -> RewriteMenu:
        """Return the other starts inside a success, and for whole tasks the other pages of the row: later ones are harder."""
        problem = self.read(task.params)
        row = next((row for row in _ROWS if problem.task in row), (problem.task,))
        here = row.index(problem.task)
        near = row[here + 1 :] if direction == "harder" else row[:here]
        others = [name for name in near if name in pages() and not problem.played]
        inside = replay.starts(problem, direction)
        about = f"Present page: {problem.task}, which says: {problem.utterance}"
        return closed_menu(
            about + replay.described(problem) * bool(inside),
            [{"task": problem.task, "start": start} for start in inside]
            + [{"task": name, "start": replay.WHOLE} for name in others],
        )

    def apply_rewrite(self, task: Task, answer: dict[str, str]) -> TaskDraft:
        """Return the task with another start, or on another page, which is opened to read its utterance."""
        expect_fields(answer, ("task", "start"), "miniwob rewrite")
        problem, name = self.read(task.params), answer["task"]
        params = {**task.params, **replay.at_start(problem, answer["start"], self.name)}
        if name != problem.task:
            params |= {"task": name, "utterance": ""}
        return self.validate(params)

    def check_rewrite(self, parent: Task, candidate: TaskDraft) -> list[CheckResult]:
        """Open the page once more; a solver or the measurement proves that it can be solved."""
        try:
            before, after = self.read(parent.params), self.read(candidate.params)
        except InputError as error:
            return proofs(("well_formed", False, error.detail))
        try:
            look = self._look(after)
        except EnvError as error:
            return proofs(("not_satisfied_at_reset", False, error.detail))
        made = replay.start_proofs(before, after)
        if not before.played and not after.played:
            row = next((row for row in _ROWS if before.task in row), ())
            own = ("task", "utterance", "recorded")
            back = after.model_copy(update={name: getattr(before, name) for name in own})
            same_row = after.task in row and back == before
            made = proofs(
                ("differs", after.task != before.task),
                ("same_row", same_row, "of page; seed and horizon stay"),
            )
        page_says = look.utterance == candidate.instruction
        return made + proofs(
            ("page_says", page_says, f"the page says {look.utterance[:200]!r}"),
            ("not_satisfied_at_reset", not look.over),
        )

    def drift(self, root: Params, candidate: Params) -> float:
        """Return the share of page, seed, horizon, utterance and start that differ."""
        one, two = self.read(root), self.read(candidate)
        names = ("task", "seed", "horizon", "utterance", "done")
        return len([n for n in names if getattr(one, n) != getattr(two, n)]) / len(names)

    def _look(self, problem: Problem) -> Look:
        lease = self._browsers.lease(PlayOptions().browsers)
        sound = False
        try:
            look = Page(lease.begin(), problem.task, problem.seed).replay(problem)
            sound = True
            return look
        finally:
            lease.end(sound=sound)


def _known(tasks: Sequence[str]) -> None:
    known = pages()
    if unknown := sorted(set(tasks) - set(known)):
        raise InputError(f"miniwob: no task {', '.join(unknown)}; there are: {', '.join(known)}")


FAMILY: Final = MiniWobFamily()
