"""The service's APIs: the native one, OpenAI's dialect, weights, keys, and errors as problem documents."""

from __future__ import annotations

import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fake_engine import FakeEngine
from tests.unit.policy.conftest import MakeService, Service, start
from triforge import __version__
from triforge.types import GenerateReply

GO = {"messages": [{"role": "user", "content": "go fridge"}]}
JSON = {"content-type": "application/json"}
PROMPT = [2, 5, 8, 1, 3]  # <user> go fridge </s> <assistant>
CHAT = {"model": "policy", **GO}


def say_cup(ids: Any, params: dict[str, Any]) -> list[int]:
    return [7, 1]


def problem(response: httpx.Response, status: int, kind: str) -> dict[str, Any]:
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = response.json()
    assert (found["type"], found["status"]) == (f"urn:triforge:{kind}", status)
    assert found["detail"]
    return found


@pytest.fixture
async def service(make_service: MakeService) -> Service:
    service = await start(make_service, FakeEngine(answer=say_cup, version="3"))
    service.fakes[0].decode = service.weights.renderer.decode
    return service


async def test_batch_has_ids_logprobs_and_versions_in_order(service: Service) -> None:
    body = {"requests": [{**GO, "n": 2}, {"prefix_ids": [2, 5], **GO}]}
    async with service.client() as client:
        response = await client.post("/v1/generate", json=body)
    first, second = map(GenerateReply.model_validate, response.json()["replies"])
    assert list(first.prompt_ids) == PROMPT
    assert list(second.prompt_ids) == [2, 5, 1, *PROMPT]
    assert len(first.outputs) == 2
    assert first.outputs[0].model_dump(mode="json") == {
        "text": "cup",
        "ids": [7, 1],
        "logprobs": [-0.5, -0.5],
        "versions": [{"version": 3, "start": 0, "end": 2}],
        "finish": "stop",
    }


async def test_samples_of_one_seeded_request_have_seeds_of_their_own(service: Service) -> None:
    async with service.client() as client:
        for _ in range(2):
            await client.post(
                "/v1/generate", json={"requests": [{**GO, "n": 3, "sampling": {"seed": 11}}]}
            )
    first, second = (
        [params["sampling_seed"] for params in body["sampling_params"]]
        for body in service.generate_bodies()
    )
    assert first[0] == 11
    assert len(set(first)) == 3
    assert first == second


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"requests": [{"messages": [], "colour": 1}]}', "requests.0.colour: unknown field"),
        (b'{"requests": [{}]}', "requests.0: messages"),
    ],
)
async def test_malformed_batch_names_the_field(service: Service, body: bytes, field: str) -> None:
    async with service.client() as client:
        response = await client.post("/v1/generate", content=body, headers=JSON)
    assert field in problem(response, 422, "input")["detail"]


@pytest.mark.parametrize("token", [-1, 10**6])
async def test_unknown_token_reaches_no_engine(service: Service, token: int) -> None:
    body = {"requests": [{**GO, "prefix_ids": [1, token]}]}
    async with service.client() as client:
        response = await client.post("/v1/generate", json=body)
    detail = problem(response, 422, "input")["detail"]
    assert f"prefix_ids: given {token}, expected ids of the vocabulary" in detail
    assert "/generate" not in [path for fake in service.fakes for path, _ in fake.calls]


async def test_a_template_that_moves_the_system_message_has_one_turn(
    make_service: MakeService, model: Path
) -> None:
    (model / "chat_template.jinja").write_text(
        "{% set rest = messages[1:] if messages[0].role == 'system' else messages %}{% for m in rest %}"
        "{% if m.role == 'user' %}{{ '<user> ' }}{% if loop.last and rest != messages %}{{ messages[0].content ~ ' ' }}{% endif %}"
        "{% else %}{{ '<assistant> ' }}{% endif %}{{ m.content ~ ' </s> ' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
    )
    service = await start(make_service, FakeEngine())
    first = {"messages": [{"role": "system", "content": "see"}, *GO["messages"]]}
    second = {**GO, "prefix_ids": [2, 10, 5, 8, 1, 3, 5, 1], "after_system": True}
    async with service.client() as client:
        assert (await client.post("/v1/generate", json={"requests": [first]})).status_code == 200
        plain = {**second, "after_system": False}
        assert (await client.post("/v1/generate", json={"requests": [plain]})).status_code == 200
        refused = await client.post("/v1/generate", json={"requests": [second]})
    assert "system message" in problem(refused, 422, "input")["detail"]


async def test_a_chat_completion_looks_like_openai_s(service: Service) -> None:
    async with service.client() as client:
        body = {**CHAT, "n": 2, "max_tokens": 9, "logprobs": True, "user": "someone"}
        found = (await client.post("/v1/chat/completions", json=body)).json()
    assert found.pop("id").startswith("chatcmpl-")
    assert isinstance(found.pop("created"), int)
    token = {"logprob": -0.5, "top_logprobs": []}
    choice = {
        "message": {"role": "assistant", "content": "cup"},
        "finish_reason": "stop",
        "logprobs": {
            "content": [
                {"token": "cup", "bytes": [99, 117, 112], **token},
                {"token": "</s>", "bytes": [60, 47, 115, 62], **token},
            ]
        },
    }
    assert found == {
        "object": "chat.completion",
        "model": "policy",
        "metadata": {"weight_version": "3"},
        "choices": [{"index": 0, **choice}, {"index": 1, **choice}],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 4,
            "total_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "number"}}}},
            {"json_schema": '{"type": "number"}'},
        ),
        ({"response_format": {"type": "json_object"}}, {"json_schema": '{"type": "object"}'}),
        ({"stop": "x", "seed": 3, "regex": "a+"}, {"stop": ["x"], "sampling_seed": 3, "regex": "a+"}),
        ({"temperature": 0, "max_completion_tokens": 7}, {"temperature": 0.0, "max_new_tokens": 7}),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "go fridge"}]}]}, {}),
        ({"tools": [], "presence_penalty": 0, "functions": None, "user": "dana", "store": False}, {}),
        (
            {"presence_penalty": 0.5, "frequency_penalty": -1, "logit_bias": {"5": -100}},
            {"presence_penalty": 0.5, "frequency_penalty": -1.0, "logit_bias": {"5": -100.0}},
        ),
    ],
)  # fmt: skip
async def test_openai_s_fields_mean_what_they_mean_there(
    service: Service, extra: dict[str, Any], expected: dict[str, Any]
) -> None:
    async with service.client() as client:
        response = await client.post("/v1/chat/completions", json={**CHAT, **extra})
    assert response.status_code == 200
    _, body = service.fakes[0].calls[-1]
    assert body["input_ids"] == [PROMPT]
    usual = {"max_new_tokens": 128, "temperature": 1.0, "stop_token_ids": [1]}
    assert body["sampling_params"] == [{**usual, **expected}]


@pytest.mark.parametrize(
    ("extra", "field"),
    [
        ({"functions": [{}], "audio": {"voice": "a"}}, "audio, functions: not supported"),
        ({"stream_options": {"colour": 1}}, "body.stream_options.colour: unknown field"),
        ({"messages": [{"role": "user", "content": "a", "name": "dana"}]}, "name: given by user"),
        ({"response_format": {"type": "json_schema"}}, "response_format: expected"),
        ({"messages": [{"role": "assistant", "content": "", "refusal": "no"}]}, "refusal: not"),
        ({"top_logprobs": 3}, "top_logprobs: given without logprobs"),
        ({"logit_bias": {"99": 1}}, "logit_bias: given 99, expected ids of the vocabulary"),
        ({"tool_choice": "required"}, "tool_choice: expected one of the tools: none is given"),
        ({"messages": []}, "body.messages"),
        ({"regex": "a", "response_format": {"type": "json_object"}}, "exclude each other"),
    ],
)
async def test_unsupported_chat_field(service: Service, extra: dict[str, Any], field: str) -> None:
    async with service.client() as client:
        response = await client.post("/v1/chat/completions", json={**CHAT, **extra})
    assert field in problem(response, 422, "input")["detail"]


@pytest.mark.parametrize(
    ("path", "asked"), [("/v1/chat/completions", GO), ("/v1/completions", {"prompt": "go"})]
)
async def test_another_model_is_not_found(service: Service, path: str, asked: Any) -> None:
    async with service.client() as client:
        for name, status in (("gpt-4", 404), ("policy", 200), ("", 200)):
            reply = await client.post(path, json={**asked, "model": name})
            assert reply.status_code == status, reply.text


@pytest.mark.parametrize(
    ("extra", "sentence"),
    [
        ({"prompt": ""}, "prompt.0: given '', expected"),
        ({"prompt": []}, "prompt: expected a text"),
        ({"prompt": [["go"]]}, "prompt.0: given ['go']"),
        ({"prompt": [5, 2**40]}, "prefix_ids: given 1099511627776, expected ids"),
        ({"prompt": ["go", "go"], "stream": True}, "stream: given with 2 prompts"),
        ({"prompt": "go", "echo": True}, "echo: not supported"),
        ({}, "body.prompt"),
    ],
)
async def test_refused_completion(service: Service, extra: dict[str, Any], sentence: str) -> None:
    async with service.client() as client:
        reply = await client.post("/v1/completions", json=extra)
    assert sentence in problem(reply, 422, "input")["detail"]


async def test_weights_routes(service: Service, model: Path, tmp_path: Path) -> None:
    folder = str(shutil.copytree(model, tmp_path / "v4"))
    async with service.client() as client:
        done = await client.post("/v1/weights", json={"version": 4, "uri": folder})
        assert done.json() == {
            "role": "policy", "version": 4, "uri": folder, "engines": 1, "ready": 1, "lost": "",
        }  # fmt: skip
        assert (await client.get("/v1/weights")).json() == done.json()
        older = await client.post("/v1/weights", json={"version": 3, "uri": folder})
        problem(older, 409, "conflict")
        missing = await client.post("/v1/weights", json={"version": 5, "uri": "/nowhere"})
        problem(missing, 422, "weights")
        # no database could keep the run that would follow on it
        huge = await client.post("/v1/weights", json={"version": 10**20, "uri": folder})
        problem(huge, 422, "input")
        assert (await client.get("/v1/weights")).json()["version"] == 4


async def test_a_key_opens_the_apis_and_the_admin_s_key_the_weights(service: Service) -> None:
    user, admin = ({"Authorization": f"Bearer {key}"} for key in ("user", "admin"))
    weights = {"version": 4, "uri": "/nowhere"}
    async with service.client(api_key="user", admin_api_key="admin") as client:
        for method, path in (
            ("POST", "/v1/generate"),
            ("POST", "/v1/chat/completions"),
            ("GET", "/v1/models"),
            ("GET", "/v1/weights"),
        ):
            refused = await client.request(method, path, json=CHAT)
            assert "Authorization" in problem(refused, 401, "unauthorized")["detail"]
            assert refused.headers["www-authenticate"] == "Bearer"
        assert (await client.get("/v1/models", headers=user)).status_code == 200
        problem(await client.post("/v1/weights", json=weights, headers=user), 401, "unauthorized")
        problem(await client.post("/v1/weights", json=weights, headers=admin), 422, "weights")
        assert (await client.get("/healthz")).status_code == 200


async def test_readiness_follows_the_engines_and_says_when_to_ask_again(service: Service) -> None:
    async with service.client() as client:
        assert (await client.get("/readyz")).json() == {"status": "ready"}
        service.fakes[0].gone = True
        await service.start()
        gone = await client.get("/readyz")
        assert "http://a" in problem(gone, 503, "unavailable")["detail"]
        assert gone.headers["retry-after"] == "2"
        problem(await client.post("/v1/generate", json={"requests": [GO]}), 503, "unavailable")
        assert (await client.get("/healthz")).json() == {"status": "alive", "version": __version__}


async def test_an_engine_s_failure_leaves_as_a_problem_of_the_policy(service: Service) -> None:
    service.fakes[0].fail_next = 1
    async with service.client() as client:
        problem(await client.post("/v1/chat/completions", json=CHAT), 502, "policy")
        problem(await client.get("/nowhere"), 404, "not_found")
        problem(await client.get("/v1/generate"), 405, "method_not_allowed")


@pytest.mark.parametrize(
    ("extra", "options", "status", "kind", "sentence"),
    [
        ({"stop_token_ids": [11, 12]}, {}, 422, "input", "given 12, expected ids of the vocabulary, 0 to 11"),
        (
            {},
            {"fail_next": 1, "fail_status": 400, "fail_message": "The input (9 tokens) is longer than the model's context length (8 tokens)."},
            422, "context_full", "The input (9 tokens) is longer than the model's context length (8 tokens)",
        ),
        ({}, {"gone": True}, 503, "unavailable", "http://a: no answer to POST /generate"),
        ({}, {"fail_next": 1, "fail_status": 503}, 429, "busy", "engine http://a"),
    ],
)  # fmt: skip
async def test_refusals_of_both_dialects(
    service: Service, extra: dict[str, Any], options: dict[str, Any], status: int, kind: str, sentence: str
) -> None:  # fmt: skip
    for name, value in options.items():
        setattr(service.fakes[0], name, value)
    native = {"requests": [{**GO, "sampling": extra}]}
    async with service.client() as client:
        for path, body in (("/v1/generate", native), ("/v1/chat/completions", {**CHAT, **extra})):
            service.fakes[0].fail_next = options.get("fail_next", 0)
            for member in service.pool.members:
                member.serving = True
            found = problem(await client.post(path, json=body), status, kind)
            assert sentence in found["detail"]
        assert (await client.get("/healthz")).status_code == 200


async def test_the_metrics_tell_of_each_engine(service: Service) -> None:
    async with service.client() as client:
        await client.post("/v1/generate", json={"requests": [GO]})
        service.fakes[0].fail_next = 1
        await client.post("/v1/generate", json={"requests": [GO]})
        text = (await client.get("/metrics")).text
    at = 'engine="http://a"'
    for line in (
        f"triforge_policy_engine_serving{{{at}}} 1.0",
        f"triforge_policy_engine_in_flight{{{at}}} 0.0",
        f"triforge_policy_engine_weight_version{{{at}}} 3.0",
        f'triforge_policy_engine_failures_total{{{at},kind="policy"}} 1.0',
        f'triforge_policy_engine_request_seconds_bucket{{{at},le="+Inf"}} 1.0',
        f"triforge_policy_engine_paused_seconds_total{{{at}}} 0.0",
        "triforge_policy_waiting 0.0",
        "triforge_policy_turned_away_total 0.0",
        "triforge_policy_requests_total 1.0",
        "triforge_policy_tokens_total 2.0",
    ):
        assert line in text


@pytest.mark.parametrize(
    "body",
    ['{"requests": [%s]}', '{"requests": [{"prefix_ids": [%s]}]}', '{"requests": [{"sampling": {"stop_token_ids": [%s]}}]}'],
)  # fmt: skip
async def test_many_wrong_numbers_are_one_error(service: Service, body: str) -> None:
    content = body % ",".join(["0.5"] * 300_000)
    async with service.client() as client:
        tracemalloc.start()
        try:
            reply = await client.post("/v1/generate", content=content, headers=JSON)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert len(problem(reply, 422, "input")["problems"]) == 1
    assert peak < 30 * 2**20
