"""Streams: the deltas join to the whole answer, for any tokens, any tokenizer, any stop strings, every dialect.

PROPERTY_EXAMPLES widens the search (`make properties`).
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders

from services.local_engine.engine import Engine
from services.local_engine.generate import result_of
from services.local_engine.request import Prompt as EnginePrompt
from services.local_engine.request import parse_sampling
from services.policy.api.anthropic import MessagesDialect
from services.policy.api.chat import ChatDialect, ChatRequest
from services.policy.api.completions import CompletionDialect, CompletionRequest
from services.policy.api.responses import ResponsesDialect
from services.policy.api.streams import Dialect
from services.policy.engines.protocol import Partial, Prompt
from services.policy.engines.sglang import SGLangEngine
from services.policy.gateway import Answer
from tests.unit.local_engine.models import (
    END,
    build_folder,
    byte_tokenizer,
    new_engine,
    sentencepiece,
)
from triforge.rendering import Renderer
from triforge.testing.model_folders import CHATML_TEMPLATE
from triforge.types import GenerateReply, Sampling

EXAMPLES = int(os.environ.get("PROPERTY_EXAMPLES", "150"))
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "fri😀dge"}}\n</tool_call>'
PARTS = (
    "a 😀 b", "é", "世界", "👩‍👩‍👧", CALL, CALL[:30], "<tool_call>", "STOP", "ST", "STO", " ", "\n", "\ufffd", "</s>",
    "<mark>", "w1", "w2 w3", " .", "n't", "\u200b", "\x00", "🇩🇪", "a", "b",
)  # fmt: skip
STOPS = ("STOP", "a", " ", "😀", "<mark>", "b<mark>S", "\ufffd", "w2", "STO", "世", "\n", "ark>")
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def rewriting() -> Tokenizer:
    """Bytes whose text is changed once more when it is whole."""
    made = byte_tokenizer()
    made.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace(" .", ".")])
    return made


@dataclass(frozen=True)
class Served:
    """A model folder, as the engine and as the policy service read it."""

    engine: Engine
    renderer: Renderer
    size: int


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Served]:
    found = {}
    made = {"bytes": byte_tokenizer(), "pieces": sentencepiece(), "words": None, "rewritten": rewriting()}  # fmt: skip
    for name, tokenizer in made.items():
        if tokenizer is not None:
            tokenizer.add_special_tokens([AddedToken("<mark>", special=True)])
            tokenizer.add_tokens([AddedToken("<tool_call>", special=False)])
        folder = build_folder(tmp_path_factory.mktemp(name), tokenizer=tokenizer)
        _chat(folder)
        engine = new_engine(folder)
        size = engine.codec.tokenizer.get_vocab_size()
        found[name] = Served(engine, Renderer.from_folder(folder), size)
    return found


def _chat(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(CHATML_TEMPLATE, encoding="utf-8")


@st.composite
def outputs(draw: st.DrawFn, size: int, encode: Any) -> list[int]:
    """The tokens of an answer: of texts, cut anywhere, and any others between them."""
    ids: list[int] = []
    for kind in draw(st.lists(st.sampled_from(["part", "text", "any"]), max_size=6)):
        if kind == "any":
            ids += draw(st.lists(st.integers(0, size - 1), max_size=6))
            continue
        text = draw(st.sampled_from(PARTS) if kind == "part" else st.text(max_size=6))
        at = draw(st.integers(0, len(text)))
        ids += [*encode(text[:at]), *encode(text[at:])]
    return [*ids, END] if draw(st.booleans()) else ids or [END]


def sampled(served: Served, ids: list[int], stops: list[str], data: st.DataObject) -> list[Any]:
    """Return the events of a sample, one after each of these tokens or after several; the last one is whole."""
    params = parse_sampling({"stop": stops, "max_new_tokens": len(ids)})
    (seq,) = served.engine.build(EnginePrompt([3], params, "r", return_logprob=True))
    seq.begin_span("0")
    sent: list[Any] = []
    for token in ids:
        seq.add(token, -0.5, torch.zeros(1, 1), 0)
        if seq.finish is not None or data.draw(st.booleans()):
            sent.append(result_of(seq, served.engine))
        if seq.finish is not None:
            break
    return sent


class Client:
    """The policy service's client of an engine that sends what it is given."""

    def __init__(self) -> None:
        self._engine = SGLangEngine("http://e", transport=httpx.MockTransport(self._answer))
        self._runner = asyncio.Runner()
        self._sent: list[list[Any]] = []
        self._left: Iterator[list[Any]] = iter(())

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if json.loads(request.content).get("stream"):
            lines = (f"data: {json.dumps(event)}\n\n" for event in next(self._left))
            return httpx.Response(200, text="".join(lines))
        return httpx.Response(200, json=[one[-1] for one in self._sent])

    def ask(self, prompt: Prompt, sent: list[list[Any]]) -> tuple[Answer, list[list[Partial]]]:
        """The whole answer with all samples, and the pieces of each of them as a stream."""
        self._sent, self._left = sent, iter(sent)
        return self._runner.run(self._ask(prompt, len(sent)))

    async def _ask(self, prompt: Prompt, count: int) -> tuple[Answer, list[list[Partial]]]:
        samples = await self._engine.generate([prompt] * count)
        outputs = tuple(sample.output for sample in samples)
        pieces = [[piece async for piece in self._engine.stream(prompt)] for _ in range(count)]
        reply = GenerateReply(prompt_ids=tuple(prompt.ids), outputs=outputs)
        return Answer(reply, [()] * count), pieces

    def close(self) -> None:
        self._runner.run(self._engine.close())
        self._runner.close()


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    made = Client()
    yield made
    made.close()


def events(dialect: Dialect[Any], pieces: list[list[Partial]], data: st.DataObject) -> list[Any]:
    """The events of a stream whose samples come in any order."""
    left = {number: list(own) for number, own in enumerate(pieces)}
    lines: list[str] = []
    while left:
        number = data.draw(st.sampled_from(sorted(left)))
        lines += dialect.take(number, left[number].pop(0))
        if not left[number]:
            del left[number]
    lines += dialect.end()
    datas = [line.partition("data: ")[2] for line in lines]
    return [json.loads(line) for line in datas if line.strip() != "[DONE]"]


def check_chat(found: list[Any], whole: dict[str, Any]) -> None:
    for choice in whole["choices"]:
        own = [c["choices"][0] for c in found if c["choices"]]
        own = [c for c in own if c["index"] == choice["index"]]
        deltas = [c["delta"] for c in own]
        message = choice["message"]
        assert "".join(d.get("content") or "" for d in deltas) == (message["content"] or "")
        calls = [call for d in deltas for call in d.get("tool_calls", ())]
        assert [{k: v for k, v in c.items() if k != "index"} for c in calls] == message.get("tool_calls", [])  # fmt: skip
        assert [c["finish_reason"] for c in own][-1] == choice["finish_reason"]
        if choice["logprobs"]:
            parts = [c["logprobs"]["content"] for c in own if c["logprobs"]]
            assert [*chain(*parts)] == choice["logprobs"]["content"]


def check_completion(found: list[Any], whole: dict[str, Any]) -> None:
    for choice in whole["choices"]:
        own = [c["choices"][0] for c in found if c["choices"]]
        own = [c for c in own if c["index"] == choice["index"]]
        assert "".join(c["text"] for c in own) == choice["text"]
        assert own[-1]["finish_reason"] == choice["finish_reason"]
        if choice["logprobs"]:
            for name in ("tokens", "token_logprobs", "text_offset"):
                parts = [c["logprobs"][name] for c in own if c["logprobs"]]
                assert [*chain(*parts)] == choice["logprobs"][name]


def check_messages(found: list[Any], whole: dict[str, Any]) -> None:
    message: dict[str, Any] = {}
    for event in found:
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                message["content"].append({**event["content_block"]})
            case "content_block_delta" if event["delta"]["type"] == "text_delta":
                message["content"][event["index"]]["text"] += event["delta"]["text"]
            case "content_block_delta":
                text = event["delta"]["partial_json"]
                message["content"][event["index"]]["input"] = json.loads(text)
            case "message_delta":
                message |= event["delta"] | {"usage": event["usage"]}
    assert message == whole


def check_responses(found: list[Any], whole: dict[str, Any]) -> None:
    last = found[-1]["response"]
    assert {**last, "created_at": 0} == {**whole, "created_at": 0}
    for number, item in enumerate(whole["output"]):
        deltas = [e["delta"] for e in found if e.get("output_index") == number and "delta" in e]
        text = item["content"][0]["text"] if item["type"] == "message" else item["arguments"]
        assert "".join(deltas) == text


def dialects(served: Served, tools: bool, logprobs: bool) -> Iterator[tuple[Dialect[Any], Any]]:
    """Yield each dialect with the function that compares its events with its whole answer."""
    more: dict[str, Any] = {"tools": TOOLS} if tools else {}
    chat = {"messages": [{"role": "user", "content": "go"}], "logprobs": logprobs, **more}
    plain = {"prompt": "go", "logprobs": 0 if logprobs else None}
    usual: Any = {"model": "m", "renderer": served.renderer, "version": 0, "name": "s-1"}
    yield ChatDialect(ChatRequest.model_validate(chat), **usual), check_chat
    yield CompletionDialect(CompletionRequest.model_validate(plain), **usual), check_completion
    body = ChatRequest.model_validate({**chat, "logprobs": False})
    yield MessagesDialect(body, **usual), check_messages
    yield ResponsesDialect(body, **usual), check_responses


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_the_deltas_of_every_dialect_join_to_the_whole_answer(
    served: dict[str, Served], client: Client, data: st.DataObject
) -> None:
    one = served[data.draw(st.sampled_from(sorted(served)))]
    stops = data.draw(st.lists(st.sampled_from(STOPS), max_size=2))
    count = data.draw(st.integers(1, 3))
    encode = one.renderer.encode_text
    ids = [data.draw(outputs(one.size, encode)) for _ in range(count)]
    sent = [sampled(one, own, stops, data) for own in ids]
    prompt = Prompt([3], Sampling(stop=tuple(stops)), (END,))
    answer, pieces = client.ask(prompt, sent)
    assert [output.text for output in answer.reply.outputs] == [e[-1]["text"] for e in sent]
    tools, logprobs = data.draw(st.booleans()), data.draw(st.booleans())
    for dialect, check in dialects(one, tools, logprobs):
        if check in (check_messages, check_responses):
            answer, pieces = _first(answer), pieces[:1]
        check(events(dialect, pieces, data), dialect.whole([answer]))


def _first(answer: Answer) -> Answer:
    outputs = answer.reply.outputs[:1]
    return Answer(answer.reply.model_copy(update={"outputs": outputs}), [()])
