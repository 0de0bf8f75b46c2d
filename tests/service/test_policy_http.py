"""The policy service over real sockets: real server, real client, fake engines that come, fail and reload."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from services.policy.app import create_app
from services.policy.engines.pool import Pool
from services.policy.engines.sglang import SGLangEngine
from services.policy.gateway import Gateway
from services.policy.weights.sync import WeightSync
from tests.fake_engine import FakeEngine
from triforge.clients.policy import PolicyClient
from triforge.clients.transport import get_json, http_client
from triforge.errors import UnavailableError, WeightsError
from triforge.testing.model_folders import words_folder
from triforge.types import ChatMessage, GenerateRequest, WeightsUpdate

WORDS = ("go", "take", "cup", "fridge")
GO = GenerateRequest(messages=(ChatMessage(role="user", content="go"),))


@contextlib.asynccontextmanager
async def serving(app: Any, port: int = 0) -> AsyncIterator[tuple[str, int]]:
    """Serve an ASGI app on a free (or the given) port of this machine."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen()  # callers that are early wait for the server instead of being refused
    config = uvicorn.Config(app, log_level="error", access_log=False, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    found = listener.getsockname()[1]
    try:
        yield f"http://127.0.0.1:{found}", found
    finally:
        server.should_exit = True
        await task
        listener.close()


@contextlib.asynccontextmanager
async def service(model: Path, *urls: str, api_key: str = "") -> AsyncIterator[str]:
    """A policy service before the given engines."""
    pool = Pool([SGLangEngine(url) for url in urls])
    weights = WeightSync(pool, role="policy", model_path=str(model), probe_s=0.05)
    app = create_app(gateway=Gateway(pool, weights), role="policy", api_key=api_key)
    async with serving(app) as (url, _):
        yield url


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return words_folder(tmp_path / "model", WORDS)


def engine(model: Path, **options: Any) -> FakeEngine:
    return FakeEngine(model_path=str(model), **options)


async def test_weights_change_under_load_and_no_request_fails(model: Path, tmp_path: Path) -> None:
    fakes = [engine(model, answer=lambda *_: [5] * 20) for _ in range(2)]
    done = asyncio.Event()
    finished: asyncio.Queue[set[int]] = asyncio.Queue()

    async def load(client: PolicyClient) -> None:
        while not done.is_set():
            (output,) = (await client(GO)).outputs
            assert (len(output.ids), output.finish) == (20, "stop")
            assert output.versions[-1].end == 20
            finished.put_nowait({span.version for span in output.versions})

    async with (
        serving(fakes[0]) as (a, _),
        serving(fakes[1]) as (b, _),
        service(model, a, b) as url,
        PolicyClient(url, batch=4) as client,
    ):
        workers = [asyncio.create_task(load(client)) for _ in range(8)]
        seen = [await finished.get() for _ in range(10)]
        for version in (1, 2):
            folder = shutil.copytree(model, tmp_path / f"v{version}")
            state = await client.update_weights(WeightsUpdate(version=version, uri=str(folder)))
            assert (state.version, state.ready) == (version, 2)
            seen += [await finished.get() for _ in range(finished.qsize() + 20)]
        with pytest.raises(WeightsError):
            await client.update_weights(WeightsUpdate(version=3, uri="/nowhere"))
        done.set()
        await asyncio.gather(*workers)
    assert seen[-1] == {2}
    assert set().union(*seen) == {0, 1, 2}


async def test_a_batch_may_hold_prompts_that_are_only_scored(model: Path) -> None:
    score = GenerateRequest(prefix_ids=(6, 7, 8), prompt_logprobs=True)
    fake = engine(model, answer=lambda *_: [5])
    async with serving(fake) as (a, _), service(model, a) as url, PolicyClient(url) as client:
        scored, sampled, again = await client.generate_many([score, GO, score])
    assert scored == again
    assert (scored.prompt_ids, scored.outputs) == ((6, 7, 8), ())
    assert scored.prompt_logprobs == (-9.0, -9.0)  # as the fake engine scores
    assert scored.prompt_version == 0
    assert sampled.outputs
    assert sampled.prompt_logprobs == ()


async def test_a_response_that_is_begun_has_its_whole_text(model: Path) -> None:
    fake = engine(model, answer=lambda *_: [7, 8], decode=lambda _: "cup")  # the last one ends it
    async with serving(fake) as (a, _), service(model, a) as url, PolicyClient(url) as client:
        reply = await client(GenerateRequest(messages=GO.messages))
        text = reply.outputs[0].text
        begun = await client(GenerateRequest(prefix_ids=(*reply.prompt_ids, 6), begun=1))
    assert begun.prompt_ids == (*reply.prompt_ids, 6)
    assert (begun.outputs[0].ids, text) == (reply.outputs[0].ids, "cup")
    assert begun.outputs[0].text.endswith(" cup"), begun.outputs[0].text
    assert begun.outputs[0].text.count(" ") == 1


async def test_a_prompt_under_which_weights_change_is_scored_again_by_one_version(
    model: Path, tmp_path: Path
) -> None:
    score = GenerateRequest(prefix_ids=(6, 7, 8), prompt_logprobs=True)
    fake = engine(model, answer=lambda *_: [5], wait_at=0)
    folder = shutil.copytree(model, tmp_path / "v1")
    async with serving(fake) as (a, _), service(model, a) as url, PolicyClient(url) as client:
        asked = asyncio.create_task(client.generate_many([score]))
        await fake.reached.wait()
        fake.wait_at = -1
        await client.update_weights(WeightsUpdate(version=1, uri=str(folder)))
        (scored,) = await asked
    assert scored.prompt_version == 1
    assert fake.paths().count("/generate") == 2, "the first answer may be of two versions"


async def test_an_engine_that_starts_late_dies_and_returns_only_makes_callers_wait(
    model: Path,
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with (
        service(model, f"http://127.0.0.1:{port}") as url,
        PolicyClient(url) as client,
        http_client(url) as plain,
    ):
        with pytest.raises(UnavailableError, match="none of 1 engines serves"):
            await get_json(plain, "/readyz")
        asked = asyncio.create_task(client(GO))
        async with serving(engine(model), port):
            assert (await asked).outputs[0].ids == (3, 1)
            assert await get_json(plain, "/readyz", deadline_s=30) == {"status": "ready"}
        asked = asyncio.create_task(client(GO))
        async with serving(engine(model), port):
            assert (await asked).outputs[0].ids == (3, 1)


async def aborted(fake: FakeEngine) -> None:
    """Wait until the fake was asked to abort its request, and let it."""
    while "/abort_request" not in fake.paths():  # noqa: ASYNC110 - the fake has no event for it
        await asyncio.sleep(0.01)
    (rid,) = [body["rid"] for path, body in fake.calls if path == "/generate"]
    aborted = [body["rid"] for path, body in fake.calls if path == "/abort_request"]
    assert aborted == (rid if isinstance(rid, list) else [rid])
    fake._changed.set()


CHAT = {"messages": [{"role": "user", "content": "go"}], "stream": True}


async def test_tokens_arrive_while_the_engine_still_writes_and_leaving_ends_its_work(
    model: Path,
) -> None:
    fake = engine(model, answer=lambda *_: [5, 6, 7, 1], wait_at=2)
    async with (
        serving(fake) as (deep, _),
        service(model, deep) as url,
        httpx.AsyncClient(base_url=url) as client,
        http_client(url) as plain,
    ):
        await get_json(plain, "/readyz", deadline_s=30)
        texts = []
        async with client.stream("POST", "/v1/chat/completions", json=CHAT) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    texts.append(json.loads(line[6:])["choices"][0]["delta"].get("content"))
                if len(texts) == 3:
                    break
            assert texts == ["", "5", " 6"]
            await fake.reached.wait()
            assert fake.running == 1
        await aborted(fake)


async def test_a_caller_that_hangs_up_ends_the_work_at_the_engine(model: Path) -> None:
    fake = engine(model, answer=lambda *_: [5, 1], wait_at=1)
    async with serving(fake) as (deep, _), service(model, deep) as url, PolicyClient(url) as client:
        asked = asyncio.create_task(client(GO))
        await fake.reached.wait()
        asked.cancel()
        await aborted(fake)
