from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from services.local_engine.app import create_app
from services.local_engine.detokenize import TextCodec
from services.local_engine.engine import Engine
from services.local_engine.model import load_model
from services.local_engine.request import Prompt, SamplingParams
from tests.unit.local_engine.models import new_engine
from tests.unit.local_engine.wire import body, client_of, until

LONG = SamplingParams(max_new_tokens=200, ignore_eos=True)


class FailingModel:
    """A model whose forward pass fails while `broken` is set."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.broken = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def forward(self, *arguments: Any) -> Any:
        if self.broken:
            raise RuntimeError("out of memory")
        return self.model.forward(*arguments)


async def test_a_pass_that_fails_leaves_no_other_request_without_an_answer(folder: Path) -> None:
    real, config = load_model(folder)
    model = FailingModel(real)
    engine = Engine(model, config, TextCodec(folder), folder)
    engine.start()
    try:
        async with client_of(engine) as client, asyncio.timeout(30):
            await engine.pause("in_place")
            # admitted together, too different in length to share a pass
            prompts = ([5], list(range(4, 60)), list(range(60, 4, -1)) * 2)
            tasks = [asyncio.create_task(client.post("/generate", json=body(p))) for p in prompts]
            await until(lambda: len(engine.scheduler.waiting) == len(prompts))
            await engine.resume()
            assert [reply.status_code for reply in await asyncio.gather(*tasks)] == [500] * 3
            model.broken = False
            assert (await client.post("/generate", json=body([5]))).status_code == 200
    finally:
        engine.stop()


async def test_requests_without_a_seed_follow_the_engines_seed(folder: Path) -> None:
    found = []
    for _ in range(2):
        engine = new_engine(folder)  # its seed is 0
        engine.start()
        outputs = []
        for rid in ("a", "b"):
            sequences = engine.build(Prompt([5], LONG, rid))
            await engine.generate(sequences)
            outputs.append(sequences[0].output)
        engine.stop()
        found.append(outputs)
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]


async def test_a_stream_that_is_read_late_still_shows_what_came_before(folder: Path) -> None:
    engine = new_engine(folder)
    engine.start()
    try:
        sequences = engine.build(
            Prompt([5], SamplingParams(max_new_tokens=3, ignore_eos=True), "a")
        )
        updates = engine.stream(sequences[0])
        await anext(updates)
        await until(lambda: sequences[0].finish is not None)
        await asyncio.sleep(0.05)  # the end is known in the loop, too
        seen = [len(sequences[0].output) async for _ in updates]
        assert seen[-1] == 3
    finally:
        engine.stop()


async def test_a_client_that_leaves_before_the_first_read_frees_its_id(folder: Path) -> None:
    engine = new_engine(folder)
    engine.start()
    app = create_app(engine=engine, served_name="tiny")
    sampling = {"max_new_tokens": 200, "ignore_eos": True}
    asked = json.dumps(body([5], rid="mine", stream=True, sampling=sampling)).encode()

    messages = iter([{"type": "http.request", "body": asked, "more_body": False}])
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return next(messages, {"type": "http.disconnect"})

    async def send(message: Any) -> None:
        sent.append(message)
        await asyncio.Event().wait()  # the client reads nothing

    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    scope: dict[str, Any] = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "POST",
        "scheme": "http", "path": "/generate", "raw_path": b"/generate", "query_string": b"", "headers": headers,
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "root_path": "",
    }  # fmt: skip
    try:
        async with client_of(engine) as client, asyncio.timeout(30):
            await engine.pause("in_place")  # so that it cannot end by itself
            await app(scope, receive, send)
            assert [message["type"] for message in sent] == ["http.response.start"]
            await until(lambda: not engine.scheduler.waiting)
            await engine.resume()
            again = {"max_new_tokens": 1}
            reply = await client.post("/generate", json=body([5], rid="mine", sampling=again))
            assert reply.status_code == 200, reply.text
    finally:
        engine.stop()
