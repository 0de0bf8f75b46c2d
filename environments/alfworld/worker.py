"""The process that holds ALFWorld's engine: `python -m environments.alfworld.worker`.

Only this module imports alfworld and TextWorld, and of triforge it imports only the loop that answers questions and pddl.py; so it
runs under any interpreter that has alfworld (`ALFWORLD_PYTHON`). Unless `ALFWORLD_MEMO` is 0, it remembers the engine's parsed
templates and translated problems; its answers stay the same.
"""

from __future__ import annotations

import copy
import json
import os
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from environments.alfworld.pddl import with_goal
from triforge.environments.worker_loop import Handlers, Refused, serve

_TASK: Final = "UNKNOWN GOAL"  # the place of the task in ALFWorld's grammar
_TRANSLATED: Final = 64  # problems whose translations are remembered
_PARSED: Final = 4096  # templates, and again queries: of the grammar and of some hundred tasks


class Games:
    """Every episode of this process."""

    def __init__(self, *, memo: bool) -> None:
        info = import_module("alfworld.info")
        textworld = import_module("textworld")
        wrappers = import_module("alfworld.agents.environment.alfred_tw_env")
        pddl = import_module("textworld.envs.pddl")
        if memo:
            _remember()
        self._wants = textworld.EnvInfos(won=True, admissible_commands=True)
        self._engine = pddl.PddlEnv
        self._named = wrappers.AlfredDemangler
        self._domain = Path(info.ALFRED_PDDL_PATH).read_text()
        self._grammar = Path(info.ALFRED_TWL2_PATH).read_text()
        self._playing: dict[str, tuple[Any, Any]] = {}
        self._idle: list[tuple[Any, Any]] = []

    def start(
        self,
        problem: str | None = None,
        task: str = "",
        file: str | None = None,
        goal: str | None = None,
    ) -> dict[str, Any]:
        """Begin an episode of a problem under the installed domain and grammar, or of a game file, maybe with another goal."""
        if file is not None:
            data = json.loads(Path(file).read_text())
            data = with_goal(data, goal, task) if goal is not None else data
        else:
            grammar = self._grammar.replace(_TASK, task)
            data = {"pddl_domain": self._domain, "grammar": grammar, "pddl_problem": problem}
        made = self._idle.pop() if self._idle else self._fresh()
        outer, _ = made
        try:
            outer.load(data)
            state = outer.reset()
        except Exception as error:  # noqa: BLE001  the engine refuses a game in many ways
            raise Refused(
                f"the engine cannot load the game ({type(error).__name__}: {error})"
            ) from None
        episode = uuid4().hex  # a new process must not know the episodes of an old one
        self._playing[episode] = made
        return {"episode": episode, **_seen(state)}

    def step(self, episode: str, command: str) -> dict[str, Any]:
        outer, _ = self._playing[episode]
        state, _, _ = outer.step(command)
        return _seen(state)

    def plan(self, episode: str) -> list[str]:
        """Return commands that win from here, by the engine's own planner; empty when it finds none."""
        _, inner = self._playing[episode]
        commands: list[str] = inner._pddl_state.replan(inner._entity_infos)
        return commands

    def end(self, episode: str) -> bool:
        """Forget an episode; its engine is used again."""
        made = self._playing.pop(episode, None)
        if made is not None:
            self._idle.append(made)
        return made is not None

    def sources(self) -> dict[str, str]:
        return {"domain": self._domain, "grammar": self._grammar}

    def _fresh(self) -> tuple[Any, Any]:
        inner = self._engine(self._wants)
        return self._named(inner), inner


def _seen(state: Any) -> dict[str, Any]:
    return {
        "text": state["feedback"],
        "commands": list(state["admissible_commands"]),
        "won": bool(state["won"]),
    }


def _remember() -> None:
    """Remember the results of the engine's parsers of templates and queries, and of its translator."""
    logic = import_module("textworld.envs.pddl.logic")
    textgen = import_module("textworld.envs.pddl.textgen")
    rule = import_module("textworld.logic").Rule
    parse: Callable[..., Any] = vars(textgen)["_parse_and_convert"]
    query = rule.parse_conjunctive_query
    vars(textgen)["_parse_and_convert"] = copied(parse, _PARSED)
    rule.parse_conjunctive_query = lru_cache(maxsize=_PARSED)(query)
    translate: Callable[..., Any] = logic.fast_downward.pddl2sas
    logic.fast_downward.pddl2sas = lru_cache(maxsize=_TRANSLATED)(translate)


def copied(parse: Callable[..., Any], most: int) -> Callable[..., Any]:
    """Return `parse` with a memory of the `most` last texts.

    The engine fills in what it has parsed, so each caller gets a copy.
    """
    parsed: OrderedDict[str, Any] = OrderedDict()

    def parse_once(text: str, **options: Any) -> Any:
        key = f"{text}\x00{sorted(options.items())}"
        if key in parsed:
            parsed.move_to_end(key)
        else:
            parsed[key] = parse(text, **options)
            if len(parsed) > most:
                parsed.popitem(last=False)
        return copy.deepcopy(parsed[key])

    return parse_once


def _load() -> Handlers:
    games = Games(memo=os.environ.get("ALFWORLD_MEMO", "1") != "0")
    return {
        "start": games.start,
        "step": games.step,
        "plan": games.plan,
        "end": games.end,
        "sources": games.sources,
    }


if __name__ == "__main__":
    serve(_load)
