"""MCP tools as an environment family."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final

from pydantic import Field, JsonValue

from environments.mcp.servers import Connection, connected, server_of
from triforge.environments.kit import (
    AnswerOptions,
    Family,
    Strict,
    parse_model,
    part_of,
    same_words,
    wrapped,
)
from triforge.environments.registry import About
from triforge.errors import EnvError, InputError
from triforge.json_text import written
from triforge.rollout.protocols import Observation, Reset, StepResult, TaskDraft
from triforge.types import Params

EPISODE: Final = "$episode"
_DONE: Final = "done"
_WHAT: Final = 'a JSON object {"tool": ..., "arguments": {...}}, or `done`'
_GUIDE: Final = "Call one tool at a time; you are shown what it answers. When the task is done, say `done`. {answer}\n\nTools:\n"
_NO_CALL: Final = f"That is no call of a tool; expected {_WHAT}."


class Call(Strict):
    """A tool with its arguments; `$episode` in one stands for a word that each episode draws anew."""

    tool: str = Field(min_length=1, max_length=200)
    arguments: dict[str, JsonValue] = Field(default_factory=dict)


class McpTask(Strict):
    """A task on a server: its instruction, and the call whose answer decides at the end whether it was done."""

    server: str = Field(min_length=1, max_length=100)
    instruction: str = Field(min_length=1, max_length=20_000)
    check: Call
    expected: JsonValue
    setup: list[Call] = Field(default_factory=list)
    tools: list[str] = Field(default_factory=list)
    fixed: dict[str, JsonValue] = Field(default_factory=dict)
    solution: list[Call] = Field(default_factory=list)
    horizon: int = Field(default=20, ge=1, le=1000)


class PlayOptions(AnswerOptions):
    """Options of a run; README.md explains each."""

    shown: int = Field(default=8000, ge=100, le=10**6)


def holds(answer: JsonValue, expected: JsonValue) -> bool:
    """Return whether an answer is as expected; an object may have further members."""
    if isinstance(expected, dict):
        return isinstance(answer, dict) and all(
            name in answer and holds(answer[name], value) for name, value in expected.items()
        )
    return answer == expected and isinstance(answer, bool) == isinstance(expected, bool)


class McpEpisode:
    """One task, with a connection to its server."""

    def __init__(self, params: McpTask, options: PlayOptions, announced: str) -> None:
        self.done = False
        word = f"episode-{secrets.token_hex(8)}"
        self._params = McpTask.model_validate_json(params.model_dump_json().replace(EPISODE, word))
        self._options, self._announced = options, announced
        self._left = params.horizon
        self._tools: list[str] = []
        self._stack = AsyncExitStack()
        self._connection: Connection | None = None

    async def start(self) -> Reset:
        params = self._params
        self._connection = await self._stack.enter_async_context(connected(params.server))
        hidden = {call.tool for call in (*params.setup, params.check)}
        tools = [
            tool
            for tool in await self._connection.tools()
            if (tool["name"] in params.tools if params.tools else tool["name"] not in hidden)
        ]
        self._tools = [str(tool["name"]) for tool in tools]
        for call in params.setup:
            answer, succeeded = await self._connection.call(call.tool, call.arguments)
            if not succeeded:
                raise EnvError(f"mcp: setup fails at {call.tool}: {str(answer)[:500]}")
        listed = "\n".join(json.dumps(_without(tool, params.fixed)) for tool in tools)
        system = self._options.system(_GUIDE, _WHAT)
        return Reset(
            observation=Observation(text=self._announced), system=system and system + listed
        )

    async def play(self, response: str) -> StepResult:
        assert self._connection is not None, "it was started"
        action = part_of(response, self._options.answer).strip()
        self._left -= 1
        over, valid, text = action.strip("`.").lower() == _DONE, True, ""
        if not over:
            text, valid = await self._call(self._connection, action)
        self.done = over or self._left == 0
        success = None
        if self.done:
            check = self._params.check
            answer, succeeded = await self._connection.call(check.tool, check.arguments)
            success = succeeded and holds(answer, self._params.expected)
            text = text or ("Done." if success else "Not done.")
        return StepResult(
            observation=Observation(text=text[: self._options.shown]),
            action=action[:2000],
            action_valid=valid,
            done=self.done,
            success=success,
        )

    async def leave(self, *, sound: bool) -> None:  # noqa: ARG002
        await self._stack.aclose()

    async def _call(self, connection: Connection, action: str) -> tuple[str, bool]:
        try:
            call = parse_model(Call, written(action), "call")
        except InputError as error:
            return error.detail, False
        except ValueError:
            return _NO_CALL, False
        if call.tool not in self._tools:
            return f"There is no tool {call.tool!r}; there are: {', '.join(self._tools)}.", False
        arguments = {**call.arguments, **self._params.fixed}
        answer, succeeded = await connection.call(call.tool, arguments)
        text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
        return text if succeeded else f"The tool fails: {text}", True


def _without(tool: dict[str, JsonValue], fixed: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Return a tool as the policy sees it, without its fixed arguments."""
    schema = tool["arguments"]
    if not fixed or not isinstance(schema, dict):
        return tool
    left = dict(schema)
    fields, needed = schema.get("properties"), schema.get("required")
    if isinstance(fields, dict):
        left["properties"] = {name: value for name, value in fields.items() if name not in fixed}
    if isinstance(needed, list):
        left["required"] = [name for name in needed if name not in fixed]
    return tool | {"arguments": left}


class McpFamily(Family[McpTask, PlayOptions]):
    """The family `mcp`; README.md explains it."""

    name = "mcp"
    about = About(
        what="tools of any MCP server that the operator names, verified by a last call of yours",
        tasks="JSONL: an instruction, a check and what it is to answer",
        licence="Apache-2.0 (own), MIT (mcp)",
        extra="mcp",
        needs=("mcp",),
    )
    params, play_options = McpTask, PlayOptions
    never_blocks = True  # it only waits for servers

    def instruction(self, given: McpTask) -> str:
        return given.instruction

    def kind(self, given: McpTask) -> str:
        return given.server

    def asks(self, draft: TaskDraft, options: Params) -> str:  # noqa: ARG002
        """Return the instruction and what it is about: server, setup and fixed arguments."""
        given = self.read(draft.params).model_dump(
            mode="json", include={"server", "setup", "fixed"}
        )
        return json.dumps([same_words(draft.instruction), given], sort_keys=True)

    def check(self, given: McpTask) -> None:
        server_of(given.server)

    def begin(self, given: McpTask, options: PlayOptions, announced: str, _seed: int) -> McpEpisode:
        return McpEpisode(given, options, announced)

    def solution(self, given: McpTask, options: PlayOptions) -> Sequence[str] | None:
        calls = [call.model_dump_json() for call in given.solution] + [_DONE]
        return [wrapped(one, options.answer) for one in calls] if given.solution else None


FAMILY: Final = McpFamily()
