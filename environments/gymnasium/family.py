"""Gymnasium environments of text as environment families: `gymnasium:ID` is one."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from random import Random
from typing import Any, Final

from pydantic import Field, JsonValue

from triforge.environments import plugins
from triforge.environments.kit import AnswerOptions, Family, Strict, parse_model, part_of
from triforge.environments.registry import About
from triforge.errors import InputError
from triforge.rollout.protocols import Observation, Reset, StepResult
from triforge.types import Params

_COLOURS: Final = ("grey", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
_COLOURED: Final = re.compile(r"\x1b\[(?:[34]([0-7]))(?:;\d+)*m(.*?)\x1b\[0?m", re.DOTALL)
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_NO_ACTION: Final = "That is no action."


@dataclass(frozen=True, slots=True)
class World:
    """Facts of an environment: whether it is drawn, its numbered actions (None: any text is one), its threshold."""

    drawn: bool
    first: int
    actions: int | None
    threshold: float | None


@lru_cache(64)
def world_of(which: str, kwargs: str) -> World:
    """Return the facts of an id and its arguments as JSON; an `InputError` if it cannot be played as text."""
    if ":" in which:  # gymnasium imports the module before it, which registers the environment
        plugins.here().demand(which, "environment gymnasium")
    spaces = import_module("gymnasium.spaces")
    made = make(which, json.loads(kwargs), drawn=False)
    try:
        text, space = isinstance(made.observation_space, spaces.Text), made.action_space
        if not text and "ansi" not in made.metadata.get("render_modes", ()):
            raise InputError(
                f"environment gymnasium:{which}: observations are {made.observation_space} and there is no render mode 'ansi', "
                "expected text; a wrapper of yours can give it some"
            )
        if not isinstance(space, spaces.Discrete | spaces.Text):
            raise InputError(
                f"environment gymnasium:{which}: actions are {space}, expected Discrete or Text"
            )
        numbered = isinstance(space, spaces.Discrete)
        return World(
            drawn=not text,
            first=int(space.start) if numbered else 0,
            actions=int(space.n) if numbered else None,
            threshold=made.spec.reward_threshold,
        )
    finally:
        made.close()


def make(which: str, kwargs: dict[str, Any], *, drawn: bool) -> Any:
    """Make an environment."""
    mode = {"render_mode": "ansi"} if drawn else {}
    try:
        return import_module("gymnasium").make(
            which, **{**kwargs, **mode}, disable_env_checker=True
        )
    except Exception as error:
        raise InputError(
            f"environment gymnasium:{which}: cannot be made: {type(error).__name__}: {error}"
        ) from error


class GeneratorOptions(Strict):
    """The arguments of the environment and its announcement; README.md explains each option."""

    kwargs: dict[str, JsonValue] = Field(default_factory=dict)
    instruction: str = Field(
        default="Earn as much reward as you can.", min_length=1, max_length=4000
    )
    actions: list[str] = Field(default_factory=list)
    horizon: int = Field(default=200, ge=1, le=10_000)


class EpisodeParams(GeneratorOptions):
    """An episode: the options of the generator, and the seed of its reset."""

    seed: int = Field(ge=0, lt=2**31)


class PlayOptions(AnswerOptions):
    """Options of a run; README.md explains each."""

    success_at: float | None = None


class GymEpisode:
    """An environment being played."""

    def __init__(
        self, which: str, given: EpisodeParams, options: AnswerOptions, world: World
    ) -> None:
        self.done = False
        self._given, self._options, self._world = given, options, world
        self._names = tuple(given.actions) or tuple(
            str(world.first + n) for n in range(world.actions or 0)
        )
        self._left, self._mask = given.horizon, None
        self._engine = make(which, dict(given.kwargs), drawn=world.drawn)

    def start(self) -> Reset:
        seen, info = self._engine.reset(seed=self._given.seed)
        what = f"one of: {', '.join(self._names)}" if self._names else "your action"
        return Reset(
            observation=self._observe(seen, info, f"{self._given.instruction}\n"),
            system=self._options.system("{answer}", what),
        )

    def play(self, response: str) -> StepResult:
        text = part_of(response, self._options.answer).strip()
        action = self._action(text)
        self._left -= 1
        if action is None:
            self.done = self._left == 0
            return StepResult(
                observation=Observation(text=_NO_ACTION, admissible=self._admissible()),
                action=text[:200],
                action_valid=False,
                done=self.done,
                reward=0.0,
            )
        seen, reward, over, cut, info = self._engine.step(action)
        self.done = bool(over or cut) or self._left == 0
        won = info.get("is_success", info.get("success"))
        return StepResult(
            observation=self._observe(seen, info, ""),
            action=text[:200],
            action_valid=True,
            done=self.done,
            success=None if won is None else bool(won),
            reward=reward,
        )

    def leave(self, *, sound: bool) -> None:  # noqa: ARG002
        self._engine.close()

    def _action(self, text: str) -> Any:
        """Return the environment's action of a response, or None."""
        if self._world.actions is None:
            return text if self._engine.action_space.contains(text) else None
        for number, name in enumerate(self._names):
            if name.lower() == text.lower() and (self._mask is None or self._mask[number]):
                return self._world.first + number
        return None

    def _observe(self, seen: Any, info: dict[str, Any], above: str) -> Observation:
        self._mask = info.get("action_mask")
        text = plain(str(self._engine.render() if self._world.drawn else seen))
        return Observation(text=f"{above}{text}" or "(nothing)", admissible=self._admissible())

    def _admissible(self) -> tuple[str, ...]:
        mask = self._mask
        kept = (
            self._names
            if mask is None
            else [n for n, is_on in zip(self._names, mask, strict=True) if is_on]
        )
        return () if self.done else tuple(kept)


def plain(drawn: str) -> str:
    """Return a drawing for a terminal as text, with tags around coloured parts."""

    def tagged(match: re.Match[str]) -> str:
        colour = _COLOURS[int(match[1])]
        return f"<{colour}>{match[2]}</{colour}>"

    return _ESCAPES.sub("", _COLOURED.sub(tagged, drawn)).strip("\n")


class GymnasiumFamily(Family[EpisodeParams, PlayOptions]):
    """The family `gymnasium:ID`; README.md explains it. Without an id it only describes itself."""

    about = About(
        what="any gymnasium environment with observations or drawings of text: `gymnasium:ID`",
        tasks="seeds",
        licence="MIT (gymnasium), and that of the environment",
        extra="gymnasium",
        needs=("gymnasium",),
    )
    params = EpisodeParams
    play_options = PlayOptions

    def __init__(self, which: str = "") -> None:
        self._which, self.episode = which, self._begin
        self.name = f"gymnasium:{which}" if which else "gymnasium"

    def named(self, which: str) -> GymnasiumFamily:
        return GymnasiumFamily(which)

    @property
    def success_at(self) -> float | None:
        """The environment's own threshold, for those whose `info` holds no success."""
        try:
            return self._world({}).threshold
        except InputError:
            return None

    def instruction(self, given: EpisodeParams) -> str:
        return given.instruction

    def kind(self, given: EpisodeParams) -> str:  # noqa: ARG002
        return self._which

    def check(self, given: EpisodeParams) -> None:
        """Refuse an environment that cannot be made or is not of text, and too few names of actions."""
        actions = self._world(given.kwargs).actions
        if given.actions and len(given.actions) != actions:
            raise InputError(
                f"{self.name} params: field actions: given {len(given.actions)} names, expected {actions or 'none: actions are text'}"
            )

    def generate(self, *, count: int, seed: int, options: Params) -> list[Params]:
        parse_model(GeneratorOptions, options, f"{self.name} generate")
        rng = Random(f"gymnasium {seed}")  # noqa: S311
        return [{**options, "seed": rng.randrange(2**31)} for _ in range(count)]

    def _begin(self, given: EpisodeParams, options: AnswerOptions) -> GymEpisode:
        return GymEpisode(self._which, given, options, self._world(given.kwargs))

    def _world(self, kwargs: dict[str, JsonValue]) -> World:
        if not self._which:
            raise InputError("environment 'gymnasium': name one, such as gymnasium:FrozenLake-v1")
        return world_of(self._which, json.dumps(kwargs, sort_keys=True))


FAMILY: Final = GymnasiumFamily()
