"""vLLM's recorded replies are understood by the policy service, and it is asked as it was when they were recorded."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from scripts.real_sglang.exchanges import Exchange, Folders
from scripts.real_sglang.recordings import read
from scripts.real_vllm.record import converse, sent
from services.policy.__main__ import build_pool
from services.policy.engines.pool import Member
from services.policy.engines.protocol import EngineInfo, Prompt
from services.policy.engines.sglang import SGLangEngine
from services.policy.engines.vllm import VLLMEngine
from services.policy.weights.adapters import Version
from services.policy.weights.loader import WeightLoader
from triforge.config import Settings
from triforge.config.base import Sampling
from triforge.errors import ContextFullError, InputError, PolicyError, WeightsError
from triforge.types import VersionSpan

RECORDED = read(Path(__file__).parent / "vllm")
START, OTHER = "/models/policy/v000000", "/models/policy/v000001"
FOLDERS = Folders(start=Path(START), other=Path(OTHER), missing=Path("/models/missing"))
URL = "vllm+http://engine"


class Replay(httpx.AsyncBaseTransport):
    """Answers each request with the first recording of the same that was not played yet."""

    def __init__(self, recorded: Iterable[Exchange]) -> None:
        self.left = list(recorded)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        asked = sent(request, FOLDERS)
        found = next(
            e
            for e in self.left
            if (e.method, e.path, e.request) == (asked.method, asked.path, asked.request)
        )
        self.left.remove(found)
        reply = found.reply
        if isinstance(reply, list):
            return httpx.Response(200, text="".join(f"data: {json.dumps(e)}\n\n" for e in reply))
        return httpx.Response(found.status, content=reply if isinstance(reply, str) else json.dumps(reply))  # fmt: skip


@pytest.fixture
async def found() -> dict[str, Any]:
    """Return what our client makes of the whole conversation."""
    replay = Replay(RECORDED.values())
    engine = VLLMEngine(URL, transport=replay)
    answers = await converse(engine, FOLDERS)
    await engine.close()
    assert [e.name for e in replay.left] == []
    return answers


async def test_answers_have_tokens_logprobs_versions_and_alternatives(
    found: dict[str, Any],
) -> None:
    one, *drawn = found["batch"]
    assert (one.output.finish, len(one.output.ids), one.prompt_tokens) == ("length", 4, 4)
    assert one.output.versions == (VersionSpan(version=0, start=0, end=4),)
    assert len(drawn) == 2
    for sample in drawn:
        for token, logprob, tops in zip(sample.output.ids, sample.output.logprobs, sample.tops, strict=True):  # fmt: skip
            assert len(tops) == 2
            assert tops[0][0] >= tops[1][0]
            assert {t: p for p, t in tops}.get(token, logprob) == logprob
    assert found["grammar"][0].output.text == '"ab"'
    assert found["grammar"][0].output.finish == "stop"
    logprobs, version = found["scored"]
    assert (len(logprobs), version) == (3, 0)


async def test_an_answer_that_lived_through_an_update_says_which_token_is_whose(
    found: dict[str, Any],
) -> None:
    *pieces, last = found["across"]
    assert [piece.finish for piece in pieces] == [None] * len(pieces)
    assert last.finish == "abort"
    (old, new) = last.versions
    assert (old.version, new.version, new.end) == (0, 1, len(last.ids))
    assert 0 < old.end == new.start


async def test_it_says_what_it_holds_and_not_what_is_half_loaded(found: dict[str, Any]) -> None:
    assert found["start"] == EngineInfo(0, START)
    assert found["moved"] == EngineInfo(1, OTHER)
    assert found["not_whole"].version == -1
    assert found["back"] == EngineInfo(2, START)
    assert (found["adapters"], found["dtype"]) == ({}, "float32")


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("too_long", ContextFullError, "maximum model length of 8192"),
        ("bad_regex", InputError, "invalid regex"),
        ("no_adapter", InputError, "v000009"),
        ("missing", WeightsError, "refuses the folder /models/missing"),
        ("no_folder", WeightsError, "refuses adapter v000001"),
        ("unload", WeightsError, "v000001"),
    ],
)
async def test_refusals_have_the_words_of_the_engine(
    found: dict[str, Any], name: str, kind: type[Exception], says: str
) -> None:
    assert type(found[name]) is kind
    assert says in found[name].detail
    assert f"engine {URL}" in found[name].detail


def answering(**replies: Any) -> VLLMEngine:
    """An engine that gives these replies by path, its underlines as slashes, else the recorded ones of a server that is well."""
    known = {e.path: e.reply for e in RECORDED.values() if e.status == 200}
    known |= {"/" + path.replace("__", "/"): reply for path, reply in replies.items()}

    def answer(request: httpx.Request) -> httpx.Response:
        reply = known[request.url.raw_path.decode()]
        status, content = reply if isinstance(reply, tuple) else (200, reply)
        return httpx.Response(status, content=json.dumps(content))

    return VLLMEngine(URL, transport=httpx.MockTransport(answer))


@pytest.mark.parametrize(
    ("config", "option"),
    [
        ({"model_config": {"logprobs_mode": "raw_logprobs"}}, "--logprobs-mode"),
        (
            {"model_config": {"logprobs_mode": "processed_logprobs"}, "lora_config": {"target_modules": None}},
            "--lora-target-modules",
        ),
    ],
)  # fmt: skip
async def test_a_server_without_an_option_that_answers_depend_on_serves_nothing(
    config: dict[str, Any], option: str
) -> None:
    await answering().health()
    engine = answering(**{"server_info?config_format=json": {"vllm_config": config}})
    with pytest.raises(PolicyError, match=option):
        await engine.health()


async def test_a_server_without_its_token_routes_says_which_option_opens_them() -> None:
    engine = answering(
        inference__v1__generate=(403, {"error": {"message": "Scale-out endpoints are disabled."}})
    )
    with pytest.raises(PolicyError, match="--enable-scale-out"):
        await engine.generate([Prompt([1], Sampling(max_new_tokens=1))])


async def test_a_failed_load_is_undone_and_its_version_is_never_shown() -> None:
    asked: list[tuple[str, Any]] = []
    version = "default"

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal version
        body = json.loads(request.content or b"null")
        asked.append((request.url.path, body))
        if request.url.path == "/update_weight_version":
            version = body["new_version"]
        if (body or {}).get("kwargs", {}).get("weights_path") == OTHER:
            return httpx.Response(500, json={"error": {"message": "file not fully covered"}})
        return httpx.Response(200, json={"weight_version": version, "data": []})

    engine = VLLMEngine(URL, transport=httpx.MockTransport(answer))
    before, wanted = Version(1, START), Version(2, OTHER)
    result = await WeightLoader().load(Member(engine), wanted, before)
    assert (type(result.failure), result.whole) == (WeightsError, True)
    names = [body["new_version"] for path, body in asked if path == "/update_weight_version"]
    assert names == ["-1", "-1", f"1 {START}"]
    assert asked[-1][0] == "/resume"


async def test_the_address_of_an_engine_says_its_kind() -> None:
    pool = build_pool(Settings(engines="vllm+http://a:1,http://b:1", api_key=SecretStr("k")))
    kinds = [(type(m.engine), m.url) for m in pool.members]
    assert kinds == [(VLLMEngine, "vllm+http://a:1"), (SGLangEngine, "http://b:1")]
    await pool.close()
