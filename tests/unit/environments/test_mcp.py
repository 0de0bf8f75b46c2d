"""Tools of MCP servers: the operator names the servers, and all episodes share the open connections."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from environments.mcp.family import FAMILY, holds
from environments.mcp.servers import Connection, Server, connected
from tests.service.test_policy_http import serving
from tests.unit.environments.tasks import task_of
from triforge.errors import ConfigError, EnvError, InputError
from triforge.rollout.protocols import StepResult
from triforge.testing.check_environment import check_environment, require
from triforge.types import Params

pytest.importorskip("mcp", reason="pip install -e '.[mcp]'")
CALLS = 128  # over HTTP each is a connection
SERVER = Path(__file__).with_name("mcp_accounts.py")
TASK: Params = {
    "server": "accounts",
    "instruction": "Pay 30 out of the account.",
    "setup": [{"tool": "open_account", "arguments": {"account": "$episode", "amount": 100}}],
    "check": {"tool": "state", "arguments": {"account": "$episode"}},
    "expected": {"amount": 70},
    "fixed": {"account": "$episode"},
    "solution": [{"tool": "pay", "arguments": {"amount": 30}}],
    "horizon": 4,
}


@pytest.fixture(autouse=True)
def operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator's file: one server, shared and alone."""
    program = {
        "command": sys.executable,
        "args": ["-I", "-S", str(SERVER)],
    }
    servers = {
        "accounts": program,
        "alone": {**program, "per_episode": True},
        "absent": {"command": "/no/such/program"},
        "silent": {"command": sys.executable, "args": ["-c", "input()"], "timeout_s": 0.5},
    }  # fmt: skip
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": servers}))
    monkeypatch.setenv("TRIFORGE_MCP_SERVERS", str(tmp_path / "servers.json"))


async def play(params: Params, *responses: str) -> list[StepResult]:
    episode = FAMILY.make({})
    try:
        await episode.reset(task_of(FAMILY, params), seed=0)
        return [await episode.step(one) for one in responses]
    finally:
        await episode.close()


def call(tool: str, **arguments: Any) -> str:
    return json.dumps({"tool": tool, "arguments": arguments})


def test_an_error_shows_no_secret_of_the_operators_file(tmp_path: Path) -> None:
    servers = {"accounts": {"url": "http://x", "headers": {"Authorization": 3}}, "token": "s3cr3t"}
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": servers}))
    with pytest.raises(ConfigError, match=r"headers\.Authorization") as caught:
        FAMILY.validate(TASK)
    assert "s3cr3t" not in caught.value.detail


async def test_the_family_keeps_the_contract_and_the_check_decides() -> None:
    require(await check_environment(FAMILY, tasks=[TASK]))
    paid, nothing = await asyncio.gather(
        play(TASK, call("pay", amount=30), "done"), play(TASK, "done")
    )
    assert [step.observation.text for step in paid] == ["70", "Done."]
    assert (paid[-1].success, nothing[-1].success) == (True, False)


async def test_another_text_than_a_call_costs_a_step() -> None:
    steps = await play(
        TASK,
        "pay 30",
        call("open_account", amount=500),
        call("pay", amount=999),
        call("state"),
    )
    assert [step.action_valid for step in steps] == [False, False, True, False]
    assert "There is no tool 'open_account'" in steps[1].observation.text
    assert "not covered" in steps[2].observation.text
    assert (steps[3].done, steps[3].success) == (True, False)


async def test_another_account_is_out_of_reach_and_fixed_arguments_are_not_shown() -> None:
    episode = FAMILY.make({})
    try:
        begun = await episode.reset(task_of(FAMILY, TASK | {"tools": ["pay", "state"]}), seed=0)
        assert '"account"' not in begun.system
        assert '"amount"' in begun.system
        seen = await episode.step(call("state", account="another"))
        assert json.loads(seen.observation.text)["amount"] == 100
    finally:
        await episode.close()


async def test_a_server_over_http_is_shown_its_key_and_takes_calls_side_by_side(
    tmp_path: Path,
) -> None:
    from mcp.server import MCPServer

    made, waiting, all_here, keys = (
        MCPServer("pages", log_level="ERROR"),
        list[int](),
        asyncio.Event(),
        set[str](),
    )

    @made.tool()
    async def together(count: int) -> int:
        waiting.append(count)
        if len(waiting) == count:
            all_here.set()
        await all_here.wait()
        return len(waiting)

    inner = made.streamable_http_app(stateless_http=True)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            keys.add(dict(scope["headers"]).get(b"authorization", b"").decode())
        await inner(scope, receive, send)

    async def one() -> Any:
        async with connected("pages") as connection:
            return await connection.call("together", {"count": CALLS})

    async with serving(app) as (url, _):
        headers = {"Authorization": "Bearer open"}
        server = {"url": f"{url}/mcp", "headers": headers}
        (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": {"pages": server}}))
        answers = await asyncio.gather(*(one() for _ in range(CALLS)))
        assert answers == [(CALLS, True)] * CALLS
        assert keys == {"Bearer open"}
        async with connected("pages") as connection:
            await connection.end()


async def test_512_calls_are_in_flight_over_one_connection() -> None:
    async def one() -> Any:
        async with connected("accounts") as connection:
            return await connection.call("together", {"count": 512})

    answers = await asyncio.gather(*(one() for _ in range(512)))
    assert len({json.dumps(answer) for answer in answers}) == 1, "one process answered all"
    assert all(fine for _, fine in answers)


async def test_a_server_of_an_episode_is_its_own() -> None:
    both = TASK | {"server": "alone", "expected": {"amount": 70, "accounts": 1}}
    for steps in await asyncio.gather(*(play(both, call("pay", amount=30), "done") for _ in "ab")):
        assert steps[-1].success


async def test_a_server_that_fails_leaves_the_episode_unmeasured_and_the_next_one_starts_it_anew() -> (
    None
):
    with pytest.raises(EnvError, match="server 'accounts' fails at leave"):
        await play(TASK, call("leave"))
    assert (await play(TASK, call("pay", amount=30), "done"))[-1].success
    for name, sentence in (("absent", "does not start: FileNotFound"), ("silent", "silent' ")):
        with pytest.raises(EnvError, match=sentence):
            await play(TASK | {"server": name}, "done")


def test_a_task_names_what_the_operator_has_named_and_starts_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(
        InputError, match=r"given 'rm', .*there are: absent, accounts, alone, silent"
    ):
        FAMILY.validate(TASK | {"server": "rm"})
    with pytest.raises(InputError, match="field command: unknown"):
        FAMILY.validate(TASK | {"command": "rm"})
    monkeypatch.delenv("TRIFORGE_MCP_SERVERS")
    with pytest.raises(InputError, match="there are: none"):
        FAMILY.validate(TASK)


@pytest.mark.parametrize(
    ("found", "expected", "same"),
    [
        ({"a": 1, "b": {"c": [1]}}, {"b": {"c": [1]}}, True),
        ({"a": 1}, {"a": 1, "b": None}, False),
        (1, True, False),
        ("x", "x", True),
        (None, {"a": 1}, False),
    ],
)
def test_an_answer_is_held_against_what_is_expected(found: Any, expected: Any, same: bool) -> None:
    assert holds(found, expected) is same


async def test_an_empty_cursor_ends_the_list_of_tools() -> None:
    pages = {None: ("one", "next"), "next": ("two", "")}

    class Lists:
        async def list_tools(self, cursor: str | None) -> SimpleNamespace:
            name, following = pages[cursor]
            tool = SimpleNamespace(name=name, description=None, input_schema={})
            return SimpleNamespace(tools=[tool], next_cursor=following)

    class Named(Server):
        @asynccontextmanager
        async def client(self) -> AsyncIterator[Lists]:
            yield Lists()

    connection = Connection("lists", Named(command="none"))
    async with asyncio.timeout(10.0):
        assert [tool["name"] for tool in await connection.tools()] == ["one", "two"]
    await connection.end()
