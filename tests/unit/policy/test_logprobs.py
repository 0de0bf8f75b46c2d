"""Log-probabilities of tokens that are parts of characters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from services.policy.api.chat import ChatDialect, ChatRequest
from services.policy.api.completions import CompletionDialect, CompletionRequest
from services.policy.gateway import Answer
from triforge.rendering import Renderer
from triforge.testing.model_folders import chatml_folder
from triforge.types import GenerateOutput, GenerateReply, VersionSpan

TEXT = "a 😀é"


def answer(ids: list[int]) -> Answer:
    spans = (VersionSpan(version=0, start=0, end=len(ids)),)
    output = GenerateOutput(
        text=TEXT, ids=tuple(ids), logprobs=(-0.5,) * len(ids), versions=spans, finish="stop"
    )
    tops = [((-0.5, token), (-1.0, 240), (-2.0, 241)) for token in ids]
    return Answer(GenerateReply(prompt_ids=(5,), outputs=(output,)), [tuple(tops)])


def usual(renderer: Renderer) -> dict[str, Any]:
    return {"model": "policy", "renderer": renderer, "version": 0}


def test_the_bytes_of_chat_s_tokens_are_those_of_the_text(tmp_path: Path) -> None:
    renderer = Renderer.from_folder(chatml_folder(tmp_path / "m"))
    ids = renderer.encode_text(TEXT)
    messages = [{"role": "user", "content": "go"}]
    body = ChatRequest.model_validate({"messages": messages, "logprobs": True, "top_logprobs": 3})
    choice = ChatDialect(body, **usual(renderer)).whole([answer(ids)])["choices"][0]
    rows = choice["logprobs"]["content"]
    assert bytes(byte for row in rows for byte in row["bytes"]).decode() == TEXT
    assert rows[0]["token"] == "a"
    assert rows[0]["top_logprobs"][0]["bytes"] == [97]


def test_plain_completions_name_parts_of_characters_by_their_bytes(tmp_path: Path) -> None:
    renderer = Renderer.from_folder(chatml_folder(tmp_path / "m"))
    ids = renderer.encode_text(TEXT)
    body = CompletionRequest.model_validate({"prompt": "go", "logprobs": 3})
    choice = CompletionDialect(body, **usual(renderer)).whole([answer(ids)])["choices"][0]
    found = choice["logprobs"]
    parts = [f"bytes:\\x{byte:02x}" for byte in "😀é".encode()]
    assert found["tokens"] == ["a", " ", *parts]
    assert found["text_offset"] == [0, 1, 2, 2, 2, 2, 3, 3]
    assert len(found["top_logprobs"][0]) == 3  # none took another's place
