"""The engine's recorded replies are understood by the policy service, and the fake engine answers in the same shapes."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from scripts.real_sglang.exchanges import Exchange
from scripts.real_sglang.recordings import alike, read
from services.policy.engines.pool import Member
from services.policy.engines.protocol import EngineInfo, Prompt
from services.policy.engines.sglang import SGLangEngine
from services.policy.engines.sglang_parsing import partial_of, samples_of
from services.policy.weights.adapters import Version
from services.policy.weights.loader import WeightLoader
from tests.fake_engine import FakeEngine
from triforge.errors import InputError, PolicyError, WeightsError
from triforge.types import Sampling, VersionSpan

RECORDED = read(Path(__file__).parent / "sglang")


def replay(*names: str) -> tuple[SGLangEngine, list[tuple[str, Any]]]:
    """An engine that answers with recordings, by path; and what it was asked."""
    known = {(RECORDED[name].method, RECORDED[name].path): RECORDED[name] for name in names}
    asked: list[tuple[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/server_info":  # asked before each load; nothing of it is recorded
            return httpx.Response(200, json={})
        found = known[request.method, request.url.path]
        asked.append((request.url.path, json.loads(request.content or b"null")))
        if isinstance(found.reply, str):
            return httpx.Response(found.status, text=found.reply)
        return httpx.Response(found.status, json=found.reply)

    return SGLangEngine("http://engine", transport=httpx.MockTransport(answer)), asked


def prompts(name: str) -> list[Prompt]:
    body = RECORDED[name].request
    return [
        Prompt(
            ids,
            Sampling(
                max_new_tokens=params["max_new_tokens"],
                temperature=params["temperature"],
                regex=params.get("regex"),
            ),
            params.get("stop_token_ids", ()),
        )
        for ids, params in zip(body["input_ids"], body["sampling_params"], strict=True)
    ]


async def test_a_batch_is_asked_for_and_understood() -> None:
    engine, asked = replay("generate_batch")
    first, second = await engine.generate(prompts("generate_batch"))
    ((path, body),) = asked
    body.pop("rid", None)  # the name under which the batch could be aborted
    assert body.pop("extra_key")  # what the engine's cache of these weights is kept under
    assert (path, body) == ("/generate", RECORDED["generate_batch"].request)
    assert first.output.text == "abcab"
    assert (first.output.finish, first.output.ids[-1], first.cached_tokens) == ("stop", 2, 3)
    assert first.output.versions == (VersionSpan(version=0, start=0, end=len(first.output.ids)),)
    assert len(first.output.logprobs) == len(first.output.ids)
    assert (second.output.finish, len(second.output.ids), second.cached_tokens) == ("length", 4, 2)


def sent(name: str) -> Prompt:
    """The prompt of a recording of one request."""
    params = RECORDED[name].request["sampling_params"]
    stop = tuple(params.get("stop", ()))
    sampling = Sampling(stop=stop, json_schema=params.get("json_schema"))
    return Prompt(RECORDED[name].request["input_ids"], sampling, params.get("stop_token_ids", ()))


@pytest.mark.parametrize(
    ("name", "says", "finish"),
    [
        ("generate_end_last", "stop", "stop"),
        ("generate_stop_string_last", "stop", "stop"),
        ("generate_json_last", "length", "stop"),
        ("generate_regex_last", "length", "length"),  # whether it could go on cannot be seen
        ("generate_ids", "length", "length"),
    ],
)
def test_an_answer_that_is_whole_with_its_last_allowed_token_is_not_cut(
    name: str, says: str, finish: str
) -> None:
    reply = RECORDED[name].reply
    assert reply["meta_info"]["finish_reason"]["type"] == says
    (sample,) = samples_of([reply], [sent(name)], "http://engine")
    assert (sample.output.finish, sample.output.text) == (finish, reply["text"])
    piece = partial_of(json.dumps(reply), sent(name), "http://engine")
    assert (piece.finish, piece.text) == (finish, reply["text"])


def test_older_versions_that_look_at_the_length_first_are_corrected() -> None:
    for name in ("generate_end_last", "generate_stop_string_last"):
        reply = copy.deepcopy(RECORDED[name].reply)
        reply["meta_info"]["finish_reason"] = {"type": "length", "length": 3}
        reply["text"] = "abcab"
        (sample,) = samples_of([reply], [sent(name)], "http://engine")
        text = "ab" if "string" in name else "abcab"
        assert (sample.output.finish, sample.output.text) == ("stop", text)


async def test_an_answer_that_lived_through_two_updates_says_which_token_is_whose() -> None:
    engine, _ = replay("generate_across_versions")
    (sample,) = await engine.generate(prompts("generate_across_versions"))
    spans = sample.output.versions
    assert [span.version for span in spans] == [0, 1, 2]
    assert [span.start for span in spans[1:]] == [span.end for span in spans[:-1]]
    assert spans[-1].end == len(sample.output.ids)


async def test_an_aborted_answer_keeps_its_tokens() -> None:
    engine, _ = replay("generate_aborted")
    (sample,) = await engine.generate(prompts("generate_aborted"))
    assert sample.output.finish == "abort"
    assert len(sample.output.ids) > 0


async def test_every_request_of_a_batch_that_is_given_up_is_aborted() -> None:
    aborted, asked = [], asyncio.Event()

    async def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/generate":
            asked.set()
            await asyncio.sleep(60)
        aborted.append(json.loads(request.content)["rid"])
        return httpx.Response(200, text=RECORDED["abort_one"].reply)  # nothing

    engine = SGLangEngine("http://engine", transport=httpx.MockTransport(answer))
    batch = asyncio.create_task(engine.generate(prompts("generate_batch")))
    await asked.wait()
    batch.cancel()
    await asyncio.wait([batch])
    await engine.close()
    assert len(set(aborted)) == 2


async def test_the_engine_says_what_it_serves() -> None:
    engine, _ = replay("ready", "model_info")
    await engine.health()
    assert await engine.info() == EngineInfo(version=0, model_path="/models/policy/v000000")


async def test_weights_are_replaced_under_a_pause_and_proven() -> None:
    names = ("pause_retract", "update_from_disk", "model_info_updated", "continue")
    engine, asked = replay(*names)
    result = await WeightLoader().load(Member(engine), Version(3, "/models/policy/v000001"), None)
    assert (result.failure, result.whole) == (None, True)
    wanted = [(RECORDED[n].path, RECORDED[n].request) for n in names]
    assert asked == wanted


async def test_an_engine_that_stays_at_its_version_is_not_believed_and_its_requests_are_ended() -> (
    None
):
    names = ("pause_retract", "update_from_disk", "model_info", "abort_all", "continue")
    engine, asked = replay(*names)
    result = await WeightLoader().load(Member(engine), Version(3, "/models/policy/v000001"), None)
    assert "serve weight version 3, serves 0" in getattr(result.failure, "detail", "")
    assert not result.whole
    assert [path for path, _ in asked] == [RECORDED[n].path for n in names]


async def test_a_refused_folder_is_a_weights_error_and_the_pause_ends() -> None:
    engine, asked = replay("pause_retract", "update_missing_folder", "abort_all", "continue")
    result = await WeightLoader().load(Member(engine), Version(9, "/models/missing"), None)
    assert isinstance(result.failure, WeightsError)
    assert "/models/missing" in result.failure.detail
    assert asked[-1][0] == "/continue_generation"


async def test_a_refused_key_names_the_engine() -> None:
    engine, _ = replay("generate_without_key")
    with pytest.raises(PolicyError, match=r"engine http://engine refuses the key \(Unauthorized\)"):
        await engine.generate([Prompt([1], Sampling(max_new_tokens=1))])


REFUSED = {
    "generate_long_prompt": "longer than the model's context length",
    "generate_over_context": "exceeds the model's maximum context length",
    "generate_bad_regex": "Failed to compile regex grammar",
    "generate_unknown_parameter": "unknown field `nonsense`",
    "generate_empty": "input_ids cannot be empty",
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_refused_request_has_the_words_of_the_engine(name: str) -> None:
    engine, _ = replay(name)
    with pytest.raises(InputError, match=REFUSED[name]):
        await engine.generate([Prompt([1], Sampling(max_new_tokens=1))])


# How the fake is brought to where the engine was when it was recorded; it plays these exchanges only.
FAKES: dict[str, Callable[[], FakeEngine]] = {
    "ready": FakeEngine,
    "health": FakeEngine,
    "model_info": FakeEngine,
    "generate_batch": lambda: FakeEngine(
        answer=lambda _, params: [5, 2] if params["max_new_tokens"] == 8 else [5] * 9
    ),
    "generate_aborted": lambda: FakeEngine(answer=lambda *_: [5, 6], paused="abort"),
    "generate_without_key": lambda: FakeEngine(api_key="k"),
    "flush": FakeEngine,
    "flush_refused": lambda: FakeEngine(running=1),
    "pause_retract": FakeEngine,
    "pause_abort": FakeEngine,
    "continue": FakeEngine,
    "update_from_disk": FakeEngine,
    "update_missing_folder": FakeEngine,
    "unknown_route": FakeEngine,
}


async def play(fake: FakeEngine, recorded: Exchange, body: Any) -> tuple[int, Any]:
    transport = httpx.ASGITransport(fake)
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        response = await client.request(recorded.method, recorded.path, json=body)
    try:
        return response.status_code, response.json()
    except ValueError:
        return response.status_code, response.text


@pytest.mark.parametrize("name", FAKES)
async def test_the_fake_engine_answers_in_the_recorded_shape(name: str, tmp_path: Path) -> None:
    recorded, body = RECORDED[name], RECORDED[name].request
    if name == "update_from_disk":
        body = {**body, "model_path": str(tmp_path)}
    status, reply = await play(FAKES[name](), recorded, body)
    expected = recorded.reply
    assert status == recorded.status
    if name == "model_info":  # the fake tells what the policy service reads
        expected = {key: expected[key] for key in reply}
    assert alike(reply, expected), (reply, expected)


async def test_each_route_gets_the_key_that_sglang_asks_for() -> None:
    fake = FakeEngine(api_key="k", admin_api_key="a")
    engine = SGLangEngine(
        "http://engine", api_key="k", admin_api_key="a", transport=httpx.ASGITransport(fake)
    )
    assert (await engine.info()).version == 0
    assert len(await engine.generate([Prompt([5], Sampling(max_new_tokens=1))])) == 1
    await engine.resume()
    await engine.receivers()
    await engine.close()
