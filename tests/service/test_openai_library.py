"""OpenAI's own client library against the API of a policy service, over real sockets."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from services.local_engine.app import create_app as engine_app
from services.policy.app import create_app
from services.policy.engines.pool import Pool
from services.policy.engines.sglang import SGLangEngine
from services.policy.gateway import Gateway
from services.policy.weights.sync import WeightSync
from tests.fake_engine import FakeEngine
from tests.service.test_policy_http import serving
from tests.unit.local_engine.models import build_folder, byte_tokenizer, new_engine
from triforge.rendering import Renderer
from triforge.testing.model_folders import TOOLS_TEMPLATE, chatml_folder

END = 2
ASK: list[Any] = [{"role": "user", "content": "What is in the fridge?"}]
LOOK: Any = {
    "type": "function",
    "function": {"name": "look", "description": "Look inside.", "parameters": {"type": "object"}},
}
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "fridge"}}\n</tool_call>'


class Deployment:
    """A service before one fake engine, and a client of OpenAI's."""

    def __init__(self, engine: FakeEngine, renderer: Renderer, url: str) -> None:
        self.engine, self._renderer, self._url = engine, renderer, url
        engine.decode = renderer.decode

    def says(self, text: str) -> None:
        """Set the engine's answer."""
        self.engine.answer = lambda *_: [*self._renderer.encode_text(text), END]

    def client(self, key: str = "user") -> openai.AsyncOpenAI:
        """OpenAI's client; it repeats nothing."""
        return openai.AsyncOpenAI(base_url=f"{self._url}/v1", api_key=key, max_retries=0)


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Deployment]:
    model = chatml_folder(tmp_path / "model")
    (model / "chat_template.jinja").write_text(TOOLS_TEMPLATE, encoding="utf-8")
    engine = FakeEngine(model_path=str(model), version="4")
    async with contextlib.AsyncExitStack() as stack:
        deep, _ = await stack.enter_async_context(serving(engine))
        pool = Pool([SGLangEngine(deep)], wait_s=0.2)
        weights = WeightSync(pool, role="policy", model_path=str(model), probe_s=0.05)
        await weights.look()
        app = create_app(gateway=Gateway(pool, weights), role="policy", api_key="user")
        url, _ = await stack.enter_async_context(serving(app))
        yield Deployment(engine, weights.renderer, url)


async def test_models_and_answers_name_role_and_version(service: Deployment) -> None:
    service.says("A cup and a table.")
    async with service.client() as client:
        (model,) = [found async for found in client.models.list()]
        assert (model.id, model.owned_by) == ("policy", "triforge")
        assert getattr(model, "metadata") == {"weight_version": "4"}  # noqa: B009 - not of OpenAI's type
        answer = await client.chat.completions.create(
            model="policy", messages=ASK, n=2, logprobs=True, stop=["END"], max_tokens=50, temperature=0.5
        )  # fmt: skip
    assert [choice.message.content for choice in answer.choices] == ["A cup and a table."] * 2
    assert {choice.finish_reason for choice in answer.choices} == {"stop"}
    assert answer.usage is not None
    for choice in answer.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        tokens = [token.token for token in choice.logprobs.content]
        assert "".join(tokens) == "A cup and a table.<|im_end|>"
        assert 2 * len(tokens) == answer.usage.completion_tokens
    (body,) = [body for path, body in service.engine.calls if path == "/generate"]
    assert body["sampling_params"][0]["stop"] == ["END"]


async def test_an_answer_is_streamed_with_its_usage(service: Deployment) -> None:
    service.says("A cup.")
    async with service.client() as client:
        chunks = [
            chunk
            async for chunk in await client.chat.completions.create(
                model="policy",
                messages=ASK,
                n=2,
                stream=True,
                stream_options={"include_usage": True},
            )
        ]
    for number in range(2):
        choices = [c.choices[0] for c in chunks if c.choices and c.choices[0].index == number]
        assert "".join(choice.delta.content or "" for choice in choices) == "A cup."
        assert choices[-1].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 2 * len(
        [*service._renderer.encode_text("A cup."), END]
    )


async def test_errors_are_those_the_library_knows(service: Deployment) -> None:
    service.says("A cup.")
    async with service.client("other") as stranger:
        with pytest.raises(openai.AuthenticationError, match="TRIFORGE_API_KEY"):
            await stranger.models.list()
    async with service.client() as client:
        with pytest.raises(openai.UnprocessableEntityError, match=r"given 99999, expected ids"):
            await client.chat.completions.create(
                model="policy", messages=ASK, extra_body={"stop_token_ids": [99999]}
            )
        service.engine.fail_next, service.engine.fail_status = 9, 500
        with pytest.raises(openai.InternalServerError, match="the fake engine is set to fail"):
            await client.chat.completions.create(model="policy", messages=ASK)
        service.engine.fail_next = 0
        service.engine.fail_next, service.engine.fail_status = 1, 429
        with pytest.raises(openai.RateLimitError) as busy:
            await client.chat.completions.create(model="policy", messages=ASK)
        assert int(busy.value.response.headers["retry-after"]) >= 1
    async with service.client() as client:
        assert [model.id async for model in client.models.list()] == ["policy"]


# ---- a real engine: a small random model whose tokens are bytes ----


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[openai.AsyncOpenAI]:
    folder = build_folder(
        tmp_path / "model", tokenizer=byte_tokenizer(), max_position_embeddings=4096
    )
    (folder / "chat_template.jinja").write_text(TOOLS_TEMPLATE, encoding="utf-8")
    engine = new_engine(folder)
    engine.start()
    try:
        async with contextlib.AsyncExitStack() as stack:
            deep, _ = await stack.enter_async_context(serving(engine_app(engine=engine, served_name="tiny")))  # fmt: skip
            pool = Pool([SGLangEngine(deep)])
            weights = WeightSync(pool, role="policy", model_path=str(folder))
            await weights.look()
            app = create_app(gateway=Gateway(pool, weights), role="policy")
            url, _ = await stack.enter_async_context(serving(app))
            yield await stack.enter_async_context(
                openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
            )
    finally:
        engine.stop()


async def test_the_model_is_retrieved_and_another_is_not_found(client: openai.AsyncOpenAI) -> None:
    assert (await client.models.retrieve("policy")).id == "policy"
    with pytest.raises(openai.NotFoundError, match="expected 'policy'"):
        await client.models.retrieve("gpt-4")
    with pytest.raises(openai.NotFoundError, match="expected 'policy'"):
        await client.chat.completions.create(model="gpt-4", messages=ASK)
    with pytest.raises(openai.NotFoundError, match="there is no such route") as lost:
        await client.embeddings.create(model="policy", input="a")
    assert isinstance(lost.value.body, dict)
    assert set(lost.value.body) == {"message", "type", "param", "code"}
    with pytest.raises(openai.UnprocessableEntityError, match=r"body\.colour: unknown field"):
        await client.chat.completions.create(
            model="policy", messages=ASK, extra_body={"colour": "red"}
        )


async def test_plain_completions_are_those_of_their_prompts(client: openai.AsyncOpenAI) -> None:
    several = await client.completions.create(
        model="policy", prompt=["ab", "c"], n=2, seed=3, max_tokens=5, logprobs=3
    )
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    assert several.usage is not None
    assert several.usage.prompt_tokens == 3
    for choice in several.choices:
        shown = choice.logprobs
        assert shown is not None
        assert shown.top_logprobs is not None
        assert shown.token_logprobs is not None
        assert {len(row) for row in shown.top_logprobs} <= {1, 2, 3}  # bytes may share a name
        for score, row in zip(shown.token_logprobs, shown.top_logprobs, strict=True):
            assert score <= max(row.values()) + 1e-6
    ids = [[byte_tokenizer().token_to_id("c")]]
    again = await client.completions.create(model="policy", prompt=ids, n=2, seed=3, max_tokens=5)
    assert [c.text for c in again.choices] == [c.text for c in several.choices[2:]]
    short = await client.completions.create(model="policy", prompt="ab", logit_bias={"2": -100})
    assert short.usage is not None
    assert short.usage.completion_tokens == 16  # OpenAI's default; the end of text cannot be drawn
    pieces = await client.completions.create(
        model="policy", prompt="ab", seed=3, max_tokens=5, stream=True
    )
    text = "".join([piece.choices[0].text async for piece in pieces])
    whole = await client.completions.create(model="policy", prompt="ab", seed=3, max_tokens=5)
    assert text == whole.choices[0].text


@pytest.mark.parametrize("named", [False, True])
async def test_a_tool_that_must_be_called_is_called_by_any_model(
    client: openai.AsyncOpenAI, named: bool
) -> None:
    place: Any = {"type": "string", "enum": ["fridge", "table"]}
    look: Any = {"name": "look", "parameters": {"type": "object", "properties": {"at": place}, "required": ["at"], "additionalProperties": False}}  # fmt: skip
    choice: Any = {"type": "function", "function": {"name": "look"}} if named else "required"
    answer = await client.chat.completions.create(
        model="policy",
        messages=ASK,
        tools=[{"type": "function", "function": look}],
        tool_choice=choice,
        temperature=0,
        max_tokens=400,
        logit_bias={
            byte_tokenizer().token_to_id(byte): -100 for byte in "\u0120\u010a\u0109\u010d"
        },
    )
    assert answer.choices[0].finish_reason == "tool_calls", answer
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "look"
    assert json.loads(call.function.arguments)["at"] in ("fridge", "table")
