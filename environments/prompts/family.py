"""Prompts with a reward function as an environment family."""

from __future__ import annotations

import json
from asyncio import wrap_future
from pathlib import Path
from random import Random
from typing import Final, Literal

from pydantic import Field, JsonValue

from environments.prompts.function import Answer, Grader, RewardFunction
from triforge.environments import plugins
from triforge.environments.kit import Family, Strict, parse_model, same_words
from triforge.environments.registry import About
from triforge.environments.rows import object_in, read_file
from triforge.errors import InputError
from triforge.rollout.protocols import Environment, Observation, Reset, StepResult, TaskDraft
from triforge.types import MAX_REFERENCE, Criteria, Params, Task

_MOST: Final = 100_000  # tasks of a pool
_WHERE: Final = "prompts options: field reward"


class Turn(Strict):
    """A message of a prompt."""

    role: Literal["system", "user", "assistant"]
    content: str


class PromptParams(Strict):
    """A row: the prompt, as text or as messages, and the row's other columns."""

    prompt: str | list[Turn]
    columns: dict[str, JsonValue] = Field(default_factory=dict)


class GeneratorOptions(Strict):
    """The file of the rows."""

    data: str


class PlayOptions(Strict):
    """The reward function, and the score from which an answer is a success, if that is to be known.

    Rows with the same value in the column `identity` are in one split; without it, those with the same prompt. `concurrency`
    calls of the function run at a time; the answers that wait are divided among them.
    """

    reward: str
    concurrency: int = Field(1, ge=1, le=256)
    success_at: float | None = None
    identity: str | None = None


class PromptEpisode:
    """A prompt being answered, once."""

    def __init__(self, given: PromptParams, grader: Grader) -> None:
        self.done = False
        self._given, self._grader = given, grader

    def start(self) -> Reset:
        system, asked = _parts(self._given.prompt)
        return Reset(observation=Observation(text=asked), system=system)

    async def play(self, response: str) -> StepResult:
        prompt = self._given.model_dump()["prompt"]
        answer = Answer(prompt, response, self._given.columns)
        score = await wrap_future(self._grader.grade(answer))
        self.done = True
        return StepResult(
            observation=Observation(text=f"Score {score:g}."),
            action=response[:2000],
            action_valid=True,
            done=True,
            score=score,
        )


class PromptsFamily(Family[PromptParams, PlayOptions]):
    """The family `prompts`; README.md explains it."""

    name = "prompts"
    about = About(
        what="prompts of yours, graded by a Python function of yours, as TRL calls them",
        tasks="JSONL, a prompt and further columns a row",
        licence="Apache-2.0 (own)",
    )
    params, play_options = PromptParams, PlayOptions
    success_at: float | None = None
    takes_any_text = True
    at_a_time = _MOST  # the rows of a file differ within one draw only
    never_blocks = True

    def __init__(self) -> None:
        self._graders: dict[tuple[str, int], Grader] = {}

    def begin(
        self, given: PromptParams, options: PlayOptions, _announced: str, _seed: int
    ) -> PromptEpisode:
        """Make the episode of a task; the episodes of a reward function share its calls."""
        function, key = (
            RewardFunction.of(options.reward, _WHERE),
            (options.reward, options.concurrency),
        )
        grader = self._graders.get(key)
        if grader is None or grader.function != function:  # served again, by another process
            grader = self._graders[key] = Grader(function, options.concurrency)
        return PromptEpisode(given, grader)

    def activity(self) -> str:
        """Describe the calls of reward functions that take long; empty without any."""
        return "; ".join(filter(None, (grader.activity() for grader in self._graders.values())))

    def instruction(self, given: PromptParams) -> str:
        return _parts(given.prompt)[1]

    def check(self, given: PromptParams) -> None:
        """Refuse messages that are not a prompt."""
        _parts(given.prompt)

    def make(self, options: Params) -> Environment:
        """Make an environment; an `InputError` if there is no such reward function."""
        plugins.load(parse_model(PlayOptions, options, "prompts options").reward, _WHERE)
        return super().make(options)

    def fits(self, params: Params, options: Params) -> None:
        """Refuse a row whose columns do not fit the reward function."""
        reward = parse_model(PlayOptions, options, "prompts options").reward
        RewardFunction.of(reward, _WHERE).wanted(self.read(params).columns, _WHERE)

    def asks(self, draft: TaskDraft, options: Params) -> str:
        """Return the prompt of a row, without case and white space, or its column `identity`."""
        given, column = (
            self.read(draft.params),
            parse_model(PlayOptions, options, "prompts options").identity,
        )
        if column is None:
            return same_words("\n".join(_parts(given.prompt)))
        if column not in given.columns:
            raise InputError(
                f"prompts options: field identity: given {column!r}, the row has the columns {', '.join(given.columns) or 'none'}"
            )
        value = given.columns[column]
        return same_words(value) if isinstance(value, str) else json.dumps(value, sort_keys=True)

    def criteria(self, task: Task, _options: Params) -> Criteria:
        """Return the columns `rubric` and `reference` of a row; an `InputError` if they cannot be read."""
        columns = self.read(task.params).columns
        rubric, reference = columns.get("rubric") or [], columns.get("reference") or ""
        if isinstance(rubric, str):
            rubric = [line for line in rubric.splitlines() if line.strip()]
        if isinstance(reference, str):
            reference = reference[:MAX_REFERENCE]
        given: Params = {"rubric": rubric, "reference": reference}
        return parse_model(Criteria, given, "prompts params: columns")

    def generate(self, *, count: int, seed: int, options: Params) -> list[Params]:
        """Draw `count` rows of the file without replacement, or all if it has fewer."""
        wanted = parse_model(GeneratorOptions, options, "prompts generate")
        rows = _rows(Path(wanted.data))
        return Random(f"prompts {seed}").sample(rows, min(count, len(rows)))  # noqa: S311


def _parts(prompt: str | list[Turn]) -> tuple[str, str]:
    """Return the system message, empty if there is none, and the user's message."""
    turns = [Turn(role="user", content=prompt)] if isinstance(prompt, str) else prompt
    roles = [turn.role for turn in turns]
    if roles not in (["user"], ["system", "user"]) or not turns[-1].content.strip():
        raise InputError(
            f"prompts params: field prompt: given messages of {', '.join(roles) or 'none'}, expected text, or a message of the "
            "user with at most a system message before it, and some text in it"
        )
    return "".join(turn.content for turn in turns[:-1]), turns[-1].content


def _rows(file: Path) -> list[Params]:
    """Read the rows of a JSONL file: the column `prompt`, and all others; an `InputError` names each bad line."""
    plugins.demand_files("prompts generate: field data", "environments/prompts/README.md")
    try:
        return read_file(file, _row)
    except InputError as error:
        where = f"prompts generate: field data: {error.detail}"
        raise InputError(where, problems=error.problems) from None


def _row(given: object) -> Params:
    row = object_in(given)
    if "prompt" not in row:
        raise InputError("expected an object with `prompt`")
    columns = {name: value for name, value in row.items() if name != "prompt"}
    params: Params = {"prompt": row["prompt"], "columns": columns}
    FAMILY.validate(params)
    return params


FAMILY: Final = PromptsFamily()
