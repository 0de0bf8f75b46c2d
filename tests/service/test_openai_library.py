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
from tests.service.test_policy_http import serving
from tests.unit.local_engine.models import build_folder, byte_tokenizer, new_engine
from triforge.testing.model_folders import TOOLS_TEMPLATE

ASK: list[Any] = [{"role": "user", "content": "What is in the fridge?"}]


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[openai.AsyncOpenAI]:
    """A client of a policy service before a local engine: a small random model whose tokens are bytes."""
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
    assert [model.id async for model in client.models.list()] == ["policy"]
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


async def test_chat_is_the_same_whole_and_streamed(client: openai.AsyncOpenAI) -> None:
    asked: dict[str, Any] = {"model": "policy", "messages": ASK, "n": 2, "seed": 3, "max_tokens": 5}
    whole = await client.chat.completions.create(**asked, logprobs=True)
    assert whole.usage is not None
    shown = [choice.logprobs.content or [] for choice in whole.choices if choice.logprobs]
    assert sum(len(tokens) for tokens in shown) == whole.usage.completion_tokens
    usage = {"include_usage": True}
    pieces = [
        piece
        async for piece in await client.chat.completions.create(
            **asked, stream=True, stream_options=usage
        )
    ]
    for number, choice in enumerate(whole.choices):
        parts = [p.choices[0] for p in pieces if p.choices and p.choices[0].index == number]
        assert "".join(part.delta.content or "" for part in parts) == choice.message.content
        assert parts[-1].finish_reason == choice.finish_reason
    assert pieces[-1].usage is not None
    assert pieces[-1].usage.completion_tokens == whole.usage.completion_tokens


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
