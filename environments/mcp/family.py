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
    expect_announced,
    parse_model,
    part_of,
    wrapped,
)
from triforge.environments.registry import About
from triforge.errors import EnvError, InputError
from triforge.rollout.protocols import Environment, Observation, Reset, StepResult
from triforge.types import Params, Task

EPISODE: Final = "$episode"
_DONE: Final = "done"
_WHAT: Final = 'a JSON object {"tool": ..., "arguments": {...}}, or `done`'
_GUIDE: Final = "Call one tool at a time; you are shown what it answers. When the task is done, say `done`. {answer}\n\nTools:\n"
_NO_CALL: Final = f"That is no call of a tool; expected {_WHAT}."


class Call(Strict):
    """A tool with its arguments; `$episode` in one stands for a word that is another one in each episode."""

    tool: str = Field(min_length=1, max_length=200)
    arguments: dict[str, JsonValue] = Field(default_factory=dict)


class McpTask(Strict):
    """A task on a server: what is asked, and the call whose answer says at the end whether it was done."""

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
    """How a task is played; README.md explains each option."""

    shown: int = Field(default=8000, ge=100, le=10**6)


def holds(found: JsonValue, expected: JsonValue) -> bool:
    """Whether an answer is what is expected; an object may have more members than are expected."""
    if isinstance(expected, dict):
        return isinstance(found, dict) and all(
            name in found and holds(found[name], value) for name, value in expected.items()
        )
    return found == expected and isinstance(found, bool) == isinstance(expected, bool)


class McpEpisode:
    """One task."""

    def __init__(self, options: PlayOptions) -> None:
        self._options = options
        self._used = False
        self._left = 0
        self._tools: list[str] = []
        self._given: McpTask | None = None
        self._connection: Connection | None = None
        self._stack = AsyncExitStack()

    async def reset(self, task: Task, *, seed: int) -> Reset:  # noqa: ARG002
        if self._used:
            raise EnvError("mcp: an environment plays one episode; make a fresh one to reset")
        self._used = True
        asked = parse_model(McpTask, task.params, "mcp params")
        expect_announced("mcp", task, asked.instruction)
        word = f"episode-{secrets.token_hex(8)}"
        named = json.loads(json.dumps(asked.model_dump(mode="json")).replace(EPISODE, word))
        given = self._given = McpTask.model_validate(named)
        connection = await self._stack.enter_async_context(connected(given.server))
        self._connection, self._left = connection, given.horizon
        ours = {call.tool for call in (*given.setup, given.check)}
        tools = [
            one
            for one in await connection.tools()
            if (one["name"] in given.tools if given.tools else one["name"] not in ours)
        ]
        self._tools = [str(one["name"]) for one in tools]
        for call in given.setup:
            said, fine = await connection.call(call.tool, call.arguments)
            if not fine:
                raise EnvError(f"mcp: setup fails at {call.tool}: {str(said)[:500]}")
        listed = "\n".join(json.dumps(_without(one, given.fixed)) for one in tools)
        system = self._options.system(_GUIDE, _WHAT)
        return Reset(
            observation=Observation(text=asked.instruction), system=system and system + listed
        )

    async def step(self, response: str) -> StepResult:
        given, connection = self._given, self._connection
        if given is None or connection is None or self._left == 0:
            raise EnvError("mcp: step after the end or before reset; the episode is not running")
        said = part_of(response, self._options.answer).strip()
        self._left -= 1
        over, valid, text = said.strip("`.").lower() == _DONE, True, ""
        if not over:
            text, valid = await self._play(given, connection, said)
        success = None
        if over or self._left == 0:
            self._left = 0
            found, fine = await connection.call(given.check.tool, given.check.arguments)
            success = fine and holds(found, given.expected)
            text = text or ("Done." if success else "Not done.")
        return StepResult(
            observation=Observation(text=text[: self._options.shown]),
            action=said[:2000],
            action_valid=valid,
            done=self._left == 0,
            success=success,
        )

    async def _play(self, given: McpTask, connection: Connection, said: str) -> tuple[str, bool]:
        try:
            call = parse_model(Call, json.loads(said), "call")
        except InputError as error:
            return error.detail, False
        except (ValueError, RecursionError):
            return _NO_CALL, False
        if call.tool not in self._tools:
            return f"There is no tool {call.tool!r}; there are: {', '.join(self._tools)}.", False
        found, fine = await connection.call(call.tool, {**call.arguments, **given.fixed})
        text = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
        return text if fine else f"The tool fails: {text}", True

    async def close(self) -> None:
        self._used, self._left = True, 0
        await self._stack.aclose()


def _without(tool: dict[str, JsonValue], fixed: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """A tool as the policy sees it: arguments that are fixed are not its own."""
    schema = tool["arguments"]
    if not fixed or not isinstance(schema, dict):
        return tool
    left = {name: value for name, value in schema.items() if name not in ("properties", "required")}
    fields, needed = schema.get("properties"), schema.get("required")
    if isinstance(fields, dict):
        left["properties"] = {name: value for name, value in fields.items() if name not in fixed}
    if isinstance(needed, list):
        left["required"] = [name for name in needed if name not in fixed]
    return tool | {"arguments": left}


class McpFamily(Family[McpTask, PlayOptions]):
    """The family `mcp`; see README.md beside this file."""

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

    def check(self, given: McpTask) -> None:
        server_of(given.server)

    def make(self, options: Params) -> Environment:
        return McpEpisode(parse_model(PlayOptions, options, "mcp options"))

    def solution(self, given: McpTask, options: PlayOptions) -> Sequence[str] | None:
        said = [call.model_dump_json() for call in given.solution] + [_DONE]
        return [wrapped(one, options.answer) for one in said] if given.solution else None


FAMILY: Final = McpFamily()
