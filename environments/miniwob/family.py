"""MiniWoB++ as an environment family: what the rest of triforge sees of it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from environments.gui.actions import Action, call, grid
from environments.gui.shell import Screen
from environments.miniwob.browsers import SHARED, Browsers, Seat
from environments.miniwob.environment import MiniWobEpisode
from environments.miniwob.gold import solve
from environments.miniwob.options import MAX_SEED, Knobs, PlayOptions, Problem
from environments.miniwob.page import HEIGHT, WIDTH, Look, Page, pages
from triforge.environments.episode import NeverRewritten
from triforge.environments.parsing import parse_model
from triforge.environments.registry import About
from triforge.errors import InputError
from triforge.rollout.protocols import Environment, TaskDraft
from triforge.types import Params, Task


class MiniWobFamily(NeverRewritten):
    """The family `miniwob`; see README.md beside this file for the knobs."""

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

    def __init__(self, browsers: Browsers = SHARED) -> None:
        self._browsers = browsers

    def validate(self, params: Params) -> TaskDraft:
        """Check and normalise a problem. Its sentence is read from the page when the parameters do not have it."""
        problem = parse_model(Problem, params, "miniwob params")
        _known([problem.task])
        if not problem.utterance:
            look = self._look(problem, PlayOptions())
            problem = problem.model_copy(update={"utterance": look.said})
        return TaskDraft(
            params=problem.model_dump(), instruction=problem.utterance, kind=problem.task
        )

    def generate(self, *, count: int, seed: int, options: Params) -> list[Params]:
        """Make `count` problems under the knobs in `options` (see `Knobs`); each is opened once to read its sentence."""
        knobs = parse_model(Knobs, options, "miniwob options")
        _known(knobs.tasks)
        made: list[Params] = []
        for index in range(count):
            rng = random.Random(f"miniwob {seed} {index}")  # noqa: S311
            problem: Params = {
                "task": rng.choice(knobs.tasks),
                "seed": rng.randint(0, MAX_SEED),
                "horizon": knobs.horizon,
            }
            made.append(self.validate(problem).params)
        return made

    def make(self, options: Params) -> Environment:
        """A fresh environment under `options` (see `PlayOptions`)."""
        play = parse_model(PlayOptions, options, "miniwob options")

        def begin(task: Task) -> MiniWobEpisode:
            problem = parse_model(Problem, task.params, "miniwob params")
            return MiniWobEpisode(task, problem, play, self._browsers)

        return Screen(self.name, begin)

    def gold(self, task: Task, options: Params) -> Sequence[str] | None:
        """The responses that solve one of the tasks that `gold.SOLVERS` knows, None for the others."""
        problem = parse_model(Problem, task.params, "miniwob params")
        play = parse_model(PlayOptions, options, "miniwob options")
        look = self._look(problem, play)
        actions = solve(problem.task, task.instruction, look.nodes)
        if actions is None:
            return None
        return [response for action in actions for response in _said(action, look, play)]

    def _look(self, problem: Problem, options: PlayOptions) -> Look:
        seat = Seat(self._browsers, options.browsers)
        sound = False
        try:
            look = Page(seat.browser(), problem.task, problem.seed).look()
            sound = True
            return look
        finally:
            seat.leave(sound=sound)


def _known(tasks: Sequence[str]) -> None:
    known = pages()
    if unknown := sorted(set(tasks) - set(known)):
        raise InputError(f"miniwob: no task {', '.join(unknown)}; there are: {', '.join(known)}")


def _said(action: Action, look: Look, options: PlayOptions) -> list[str]:
    """The responses that play a click or a `type` on an element: by number, or by pixel in the computer-use format."""
    if options.actions == "command":
        if action.kind == "type":
            return [f"type {action.ref} {action.text}"]
        return [f"click {action.ref}"]
    x, y = next(node.centre for node in look.nodes if node.ref == action.ref)
    seen = 0 <= x < WIDTH and 0 <= y < HEIGHT
    where = {"coordinate": [*grid(x, y, WIDTH, HEIGHT)]} if seen else {"ref": action.ref}
    click = call("left_click", **where)
    return [click, call("type", text=action.text)] if action.kind == "type" else [click]


FAMILY: Final = MiniWobFamily()
