"""Ids that the tokenizer has and the model's embedding has not: never in a prompt, and refused at the start if a template needs them."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from tokenizers import AddedToken, Tokenizer

from services.policy.engines.pool import Pool
from services.policy.engines.sglang import SGLangEngine
from services.policy.gateway import Gateway
from services.policy.weights.sync import WeightSync
from triforge.errors import InputError, WeightsError
from triforge.rendering import Renderer
from triforge.testing.model_folders import chatml_folder
from triforge.types import ChatMessage, GenerateRequest


def folder_of(path: Path, *tokens: str) -> tuple[Path, int]:
    """A folder whose tokenizer has more tokens than its model has rows, and the first id without a row."""
    folder = chatml_folder(path)
    file = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    rows = tokenizer.get_vocab_size()
    tokenizer.add_tokens([AddedToken(token, special=False) for token in tokens])
    tokenizer.save(str(file))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": rows}))
    return folder, rows


async def gateway_of(folder: Path) -> Gateway:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.path != "/generate"
        return httpx.Response(200, json={"weight_version": "default"})

    pool = Pool([SGLangEngine("http://engine", transport=httpx.MockTransport(answer))])
    gateway = Gateway(pool, WeightSync(pool, role="policy", model_path=str(folder)))
    await gateway.weights.look()
    return gateway


async def test_ids_without_a_row_are_refused_whether_given_or_written(tmp_path: Path) -> None:
    folder, rows = folder_of(tmp_path / "model", "@@more@@")
    gateway = await gateway_of(folder)
    assert gateway.weights.renderer.vocab_size == rows
    message = ChatMessage(role="user", content="a @@more@@")
    for request in (
        GenerateRequest(prefix_ids=(5, rows)),
        GenerateRequest(messages=(message,)),
        GenerateRequest(prefix_ids=(5, 2), messages=(message,)),
        GenerateRequest(prefix_ids=(rows,), prompt_logprobs=True),
    ):
        with pytest.raises(InputError, match=f"given {rows}, expected ids of the vocabulary"):
            await gateway.generate([request])


def test_a_template_that_writes_them_is_refused_at_the_start(tmp_path: Path) -> None:
    folder, rows = folder_of(tmp_path / "model", "<|more|>")
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text().replace("<|im_start|>", "<|more|>"))
    with pytest.raises(WeightsError, match=rf"'<\|more\|>', id {rows}"):
        Renderer.from_folder(folder)
