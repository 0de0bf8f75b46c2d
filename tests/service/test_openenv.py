"""OpenEnv both ways: our environments behind its protocol, and its servers as an environment."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import httpx
import pytest
import uvicorn

from environments.openenv.family import FAMILY, action_of
from environments.sokoban.family import SokobanFamily
from services.env_adapter.openenv.server import Served, create_app
from services.env_adapter.openenv.session import Session, Tasks
from tests.service.env_service import client_of
from triforge.environments import registry
from triforge.errors import ConflictError, EnvError, InputError
from triforge.rollout.protocols import Environment, Reset, StepResult
from triforge.testing.check_environment import check_environment, require
from triforge.types import Params, Task
from triforge.web.server import config_of

pytest.importorskip("wsproto", reason="pip install -c constraints.txt -e '.[openenv]'")


def served(count: int = 4) -> Served:
    family = registry.family("sokoban")
    params = family.generate(count=count, seed=1, options={"moves": [2, 4]})
    return Served(tasks=Tasks(family, params), options={}, description="boxes", version="1")


@asynccontextmanager
async def running(what: Served) -> AsyncIterator[str]:
    config = config_of(
        create_app(served=what), "127.0.0.1", 8000, log_level="warning", ws="wsproto"
    )
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    with socket.create_server(("127.0.0.1", 0)) as bound:
        serving = asyncio.create_task(server.serve(sockets=[bound]))
        try:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


@pytest.fixture
def http() -> httpx.AsyncClient:
    return client_of(create_app(served=served()))


async def test_the_apis_answer_as_openenv_words_it(http: httpx.AsyncClient) -> None:
    async with http:
        assert (await http.get("/health")).json() == {"status": "healthy"}
        assert (await http.get("/metadata")).json()["name"] == "sokoban"
        schema = (await http.get("/schema")).json()
        assert schema["action"]["required"] == ["text"]
        assert set(schema) == {"action", "observation", "state"}
        assert (await http.post("/mcp", json={})).json()["jsonrpc"] == "2.0"
        paths = (await http.get("/openapi.json")).json()
        assert {"/reset", "/step", "/state"} <= set(paths["paths"])
        begun = (await http.post("/reset", json={"seed": 3, "episode_id": "e"})).json()
        assert (begun["reward"], begun["done"]) == (None, False)
        after = (await http.post("/step", json={"action": {"text": "sideways"}})).json()
        assert (after["reward"], after["observation"]["action_valid"]) == (0.0, False)
        state = (await http.get("/state")).json()
        assert (state["episode_id"], state["step_count"]) == ("e", 1)


async def test_what_cannot_be_is_refused_in_one_sentence(http: httpx.AsyncClient) -> None:
    async with http:
        early = await http.post("/step", json={"action": {"text": "up"}})
        assert (early.status_code, early.json()["type"]) == (409, "urn:triforge:conflict")
        for path, body, sentence in (
            ("/reset", {"colour": 1}, "field colour: unknown"),
            ("/reset", {"seed": -1}, "seed"),
            ("/reset", {"task": {"board": ["###"]}}, "expected 3 to 16"),
            ("/step", {"action": {"move": "up"}}, "expected an object with the field text"),
        ):
            await http.post("/reset", json={})
            answer = await http.post(path, json=body)
            assert answer.status_code == 422
            assert sentence in answer.json()["detail"]


async def test_a_seed_and_given_parameters_choose_the_task() -> None:
    what = served()
    session = Session(what.tasks, {})
    first = [(await session.reset({"seed": seed}))["observation"]["text"] for seed in range(5)]
    assert first[0] == first[4]
    assert len(set(first)) == 4
    board = ["#####", "#@$.#", "#####"]
    seen = await session.reset({"task": {"board": board, "horizon": 9}})
    assert "\n".join(board) in seen["observation"]["text"]
    after = await session.step({"text": "right"})
    assert (after["reward"], after["done"], after["observation"]["success"]) == (1.0, True, True)
    await session.close()


async def test_each_socket_has_a_session_of_its_own_and_survives_nonsense() -> None:
    async with running(served()) as url, aiohttp.ClientSession() as client:  # noqa: SIM117
        async with client.ws_connect(f"{url}/ws") as one, client.ws_connect(f"{url}/ws") as two:

            async def ask(socket_: Any, text: str) -> Any:
                await socket_.send_str(text)
                return json.loads(await socket_.receive_str())

            for text, code in (
                ("{", "INVALID_JSON"),
                ("[]", "UNKNOWN_TYPE"),
                ('{"type": "dance"}', "UNKNOWN_TYPE"),
                ('{"type": "step", "data": {"text": "up"}}', "SESSION_ERROR"),
                ('{"type": "reset", "data": {"seed": "x"}}', "VALIDATION_ERROR"),
            ):
                assert (await ask(one, text))["data"]["code"] == code
            await ask(one, '{"type": "reset", "data": {"seed": 1}}')
            begun = await ask(two, '{"type": "reset"}')
            assert begun["type"] == "observation"
            await ask(one, '{"type": "step", "data": {"text": "up"}}')
            counts = [(await ask(s, '{"type": "state"}'))["data"]["step_count"] for s in (one, two)]
            assert counts == [1, 0]
            await one.send_str('{"type": "close"}')
            assert (await one.receive()).type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)


async def test_sockets_are_bounded_in_number_and_silence_and_close_with_a_reason() -> None:
    async def parting(socket_: Any) -> tuple[Any, int, str]:
        error = json.loads((await socket_.receive()).data)["data"]
        end = await socket_.receive()
        assert end.type is aiohttp.WSMsgType.CLOSE
        return error["code"], end.data, end.extra

    few = replace(served(), sessions=1)
    async with running(few) as url, aiohttp.ClientSession() as client:
        async with client.ws_connect(f"{url}/ws") as one:
            async with client.ws_connect(f"{url}/ws") as two:
                why = "all 1 sessions are taken (--sessions)"
                assert await parting(two) == ("CAPACITY_REACHED", 1013, why)
            await one.send_bytes(b"{}")
            code, number, why = await parting(one)
            assert (code, number) == ("SESSION_ERROR", 1003)
            assert "binary" in why
        async with client.ws_connect(f"{url}/ws") as three:  # the places are free again
            await three.send_str('{"type": "state"}')
            assert json.loads(await three.receive_str())["type"] == "state"
    async with running(replace(served(), idle_s=0.05)) as url, aiohttp.ClientSession() as client:  # noqa: SIM117
        async with client.ws_connect(f"{url}/ws") as silent:
            why = "no message for 0.05 s (--idle)"
            assert await parting(silent) == ("SESSION_ERROR", 1001, why)


async def test_a_reset_that_fails_leaves_no_episode_and_a_malformed_one_the_one_before() -> None:
    class Fragile(SokobanFamily):
        broken = False

        def make(self, options: Params) -> Environment:
            if self.broken:
                raise EnvError("it does not start")
            return super().make(options)

    family = Fragile()
    session = Session(Tasks(family, [served().tasks.pick(0).params]), {})
    await session.reset({"episode_id": "first"})
    await session.step({"text": "up"})
    with pytest.raises(InputError):
        await session.reset({"task": {"board": "none"}})
    assert (session.state()["episode_id"], session.state()["step_count"]) == ("first", 1)
    family.broken = True
    with pytest.raises(EnvError, match="does not start"):
        await session.reset({"episode_id": "second"})
    assert session.state() == {"episode_id": None, "step_count": 0, "done": False}
    with pytest.raises(ConflictError, match="reset first"):
        await session.step({"text": "up"})


PNG = b"\x89PNG\r\n\x1a\n" + bytes(8)


class Seeing(SokobanFamily):
    """Shows a picture with everything."""

    picture = PNG

    def make(self, options: Params) -> Environment:
        environment, picture = super().make(options), self.picture
        reset = environment.reset

        async def shown(task: Task, *, seed: int) -> Reset:
            begun = await reset(task, seed=seed)
            return replace(begun, observation=replace(begun.observation, images=(picture,)))

        environment.reset = shown  # type: ignore[method-assign]
        return environment


@pytest.mark.parametrize(
    ("picture", "images", "sentence"),
    [(PNG, True, ""), (PNG, False, ""), (b"GIF89a", True, "neither PNG nor JPEG")],
)
async def test_screenshots_travel_with_the_observation(
    picture: bytes, images: bool, sentence: str
) -> None:
    family = Seeing()
    family.picture = picture
    tasks = Tasks(family, [served().tasks.pick(0).params])
    async with running(replace(served(), tasks=tasks)) as url:
        environment = FAMILY.make({"images": images})
        draft = FAMILY.validate({"url": url})
        task = Task(
            id="t", pool_id="p", slot="t", family="openenv", instruction=draft.instruction, params=draft.params
        )  # fmt: skip
        try:
            if sentence:
                with pytest.raises(EnvError, match=sentence):
                    await environment.reset(task, seed=0)
            else:
                seen = (await environment.reset(task, seed=0)).observation
                assert seen.images == ((picture,) if images else ())
                assert "base64" not in seen.text
        finally:
            await environment.close()


async def test_an_adapter_that_breaks_is_an_error_of_the_step_not_the_end_of_the_session() -> None:
    class Broken(SokobanFamily):
        def make(self, options: Params) -> Environment:
            raise ZeroDivisionError("by zero")

    what = served()
    tasks = Tasks(Broken(), [what.tasks.pick(0).params])
    async with running(replace(what, tasks=tasks)) as url, aiohttp.ClientSession() as client:  # noqa: SIM117
        async with client.ws_connect(f"{url}/ws") as socket_:
            for _ in range(2):
                await socket_.send_str('{"type": "reset"}')
                answer = json.loads(await socket_.receive_str())
                assert answer["data"]["code"] == "EXECUTION_ERROR"
                assert "by zero" in answer["data"]["message"]


async def test_a_server_of_ours_keeps_the_contract_as_an_environment() -> None:
    async with running(served()) as url:
        results = await check_environment(
            FAMILY, generator_options={"url": url, "horizon": 30}, count=2
        )
        require(results)


def task(params: Params) -> Task:
    draft = FAMILY.validate(params)
    return Task(
        id="t", pool_id="p", slot="t", family="openenv", instruction=draft.instruction, params=draft.params
    )  # fmt: skip


async def test_rewards_that_sum_up_to_enough_are_a_success() -> None:
    async with running(served()) as url:
        board: Params = {"board": ["#####", "#@$.#", "#####"], "horizon": 9}
        environment = FAMILY.make({})
        try:
            begun = await environment.reset(task({"url": url, "reset": {"task": board}}), seed=0)
            assert "#@$.#" in begun.observation.text
            assert "You play Sokoban" in begun.system
            assert "right" in begun.observation.admissible
            result = await environment.step("right")
            assert (result.done, result.success) == (True, True)
        finally:
            await environment.close()


async def test_a_server_that_is_not_there_is_reported_with_the_command_that_starts_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = FAMILY.make({"timeout_s": 5.0})
    with pytest.raises(EnvError, match=r"no OpenEnv server answers at .*triforge env serve"):
        await environment.reset(task({"url": f"http://127.0.0.1:{port}"}), seed=0)
    await environment.close()


async def test_a_server_that_refuses_or_goes_away_is_an_infrastructure_failure() -> None:
    async with running(served()) as url:
        refused = FAMILY.make({})
        with pytest.raises(EnvError, match="field level: unknown"):
            await refused.reset(task({"url": url, "reset": {"level": 3}}), seed=0)
        await refused.close()
        left = FAMILY.make({})
        await left.reset(task({"url": url}), seed=0)
    with pytest.raises(EnvError, match="did not answer 'step'"):
        await left.step("up")
    await left.close()


async def test_an_action_that_a_server_refuses_costs_a_step_and_is_measured() -> None:
    class Picky(SokobanFamily):
        def make(self, options: Params) -> Environment:
            environment = super().make(options)
            moved = environment.step

            async def step(response: str) -> StepResult:
                if response != "up":
                    raise InputError("action: expected a direction")
                return await moved(response)

            environment.step = step  # type: ignore[method-assign]
            return environment

    params = served().tasks.pick(0).params
    picky = Served(tasks=Tasks(Picky(), [params]), options={}, description="", version="1")
    async with running(picky) as url:
        environment = FAMILY.make({})
        await environment.reset(task({"url": url, "horizon": 2}), seed=0)
        results = [await environment.step(response) for response in ("[" * 100_000, "up")]
        await environment.close()
    seen = [(result.action_valid, result.done, result.success) for result in results]
    assert seen[0] == (False, False, False)
    assert seen[1][1:] == (True, False)


@pytest.mark.parametrize("params", [{}, {"url": "ftp://x"}, {"url": "http://x", "success": "much"}])
def test_a_malformed_episode_is_refused(params: Params) -> None:
    with pytest.raises(InputError, match="openenv params: field"):
        FAMILY.validate(params)


TEXT = {"required": ["text"], "properties": {"text": {"type": "string"}}}
NUMBER = {"required": ["move"], "properties": {"move": {"type": "integer"}}}
TWO = {"required": ["x", "y"]}


@pytest.mark.parametrize(
    ("response", "schema", "action"),
    [
        ("12", TEXT, {"text": "12"}),
        ('{"a": 1}', TEXT, {"text": '{"a": 1}'}),
        ("12", NUMBER, {"move": 12}),
        ("left", NUMBER, {"move": "left"}),
        ('{"x": 1, "y": 2}', TWO, {"x": 1, "y": 2}),
        ("left", TWO, None),
        ("[" * 100_000, TWO, None),
    ],
    ids=range(7),
)
def test_a_response_becomes_an_action_of_the_servers_schema(
    response: str, schema: dict[str, Any], action: dict[str, Any] | None
) -> None:
    assert action_of(response, schema) == action


def test_pools_of_different_seeds_share_no_episode() -> None:
    family = registry.family("openenv")

    def seeds(seed: int, **more: object) -> list[object]:
        options: Params = {"url": "http://127.0.0.1:1", **more}  # type: ignore[dict-item]
        made = family.generate(count=50, seed=seed, options=options)
        return [params["reset"]["seed"] for params in made]  # type: ignore[index,call-overload]

    assert not set(seeds(0)) & set(seeds(1))
    assert seeds(0) == seeds(0)
    assert seeds(1, first_seed=7)[:2] == [7, 8]
