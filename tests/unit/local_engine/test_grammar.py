from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken

from services.local_engine.detokenize import TextCodec
from services.local_engine.engine import Engine
from services.local_engine.request import Prompt, SamplingParams, parse_sampling
from tests.unit.local_engine.models import build_folder, byte_tokenizer, new_engine, sentencepiece
from triforge.errors import InputError


async def sample(
    engine: Engine, count: int, **params: Any
) -> list[tuple[str, dict[str, Any] | None]]:
    """(text, finish reason) of `count` samples of a prompt."""
    ids = engine.codec.encode("w1" if engine.codec.tokenizer.decoder is None else "a")
    settings = SamplingParams(n=count, sampling_seed=1, **params)
    sequences = engine.build(Prompt(ids, settings, "r"))
    await engine.generate(sequences)
    return [(engine.codec.decode(seq.output), seq.finish) for seq in sequences]


@pytest.fixture
def words(folder: Path) -> Any:
    engine = new_engine(folder)
    engine.start()
    yield engine
    engine.stop()


@pytest.fixture
def bytes_engine(byte_folder: Path) -> Any:
    engine = new_engine(byte_folder)
    engine.start()
    yield engine
    engine.stop()


async def test_regex_output_over_words_always_matches(words: Engine) -> None:
    # "yes" begins "yesterday": a word must not be taken for the beginning of another one.
    pattern = r"(yesterday|no) (w[1-3]|w1[0-9]) (yes|no)"
    found = await sample(words, 16, regex=pattern, max_new_tokens=20)
    for text, finish in found:
        assert re.fullmatch(pattern, text)
        assert finish == {"type": "stop", "matched": 2}
    assert len({text for text, _ in found}) > 4


async def test_added_tokens_are_text_in_a_grammar_and_special_ones_are_none(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False)])
    engine = new_engine(build_folder(tmp_path / "m", tokenizer=tokenizer))
    engine.start()
    try:
        for params in ({"regex": "a<tool_call>b"}, {"json_schema": '{"const": "<tool_call>"}'}):
            [(text, finish)] = await sample(engine, 1, **params)
            assert text in ("a<tool_call>b", '"<tool_call>"')
            assert finish == {"type": "stop", "matched": 2}
        [(text, finish)] = await sample(engine, 1, regex="a</s>b")
        assert (text, finish) == ("a</s>b", {"type": "stop", "matched": 2})
    finally:
        engine.stop()


async def test_a_grammar_over_pieces_and_bytes_holds(tmp_path: Path) -> None:
    engine = new_engine(build_folder(tmp_path / "m", tokenizer=sentencepiece()))
    engine.start()
    try:
        found = await sample(engine, 4, regex="(a|世) 😀 </s>", max_new_tokens=40)
        assert {text for text, _ in found} <= {"a 😀 </s>", "世 😀 </s>"}
    finally:
        engine.stop()


@pytest.mark.parametrize("params", [{"regex": "abc"}, {"json_schema": '{"const": 1.5}'}])
async def test_a_grammar_that_is_finished_by_the_last_token_is_whole(
    bytes_engine: Engine, params: dict[str, str]
) -> None:
    [(_, finish)] = await sample(bytes_engine, 1, **params, max_new_tokens=3)
    assert finish == {"type": "stop", "matched": None}
    [(_, finish)] = await sample(bytes_engine, 1, **params, max_new_tokens=2)
    assert finish == {"type": "length", "length": 2}


async def test_constrained_tokens_keep_the_logprobs_of_the_free_distribution(words: Engine) -> None:
    ids = words.codec.encode("w1")
    forced = words.build(Prompt(ids, SamplingParams(regex="w5", temperature=0.0), "f"))
    prompt = words.codec.encode("w1 w5")
    scored = words.build(Prompt(prompt, SamplingParams(max_new_tokens=0), "s", True, 0))
    await words.generate(forced)
    await words.generate(scored)
    assert forced[0].logprobs[0] == pytest.approx(scored[0].input_scores[1][0], abs=1e-5)


async def test_a_grammar_that_the_vocabulary_cannot_continue_ends_as_aborted(words: Engine) -> None:
    [(_, finish)] = await sample(words, 1, regex="w1 unheard", max_new_tokens=20)
    assert finish is not None
    assert finish["type"] == "abort"
    assert "no token of the vocabulary" in finish["message"]


async def test_a_grammar_that_is_too_large_to_follow_ends_as_aborted(bytes_engine: Engine) -> None:
    schema = json.dumps({"type": "string", "pattern": "^(a{1000}){1000}$"})
    [(_, finish)] = await sample(bytes_engine, 1, json_schema=schema, max_new_tokens=20)
    assert finish is not None
    assert finish["type"] == "abort"
    assert "the grammar cannot be followed" in finish["message"]


@pytest.mark.parametrize(
    "params",
    [
        {"regex": "(a"},
        {"json_schema": "{no"},
        {"json_schema": '{"type": "nonsense"}'},
        {"json_schema": '{"items":' * 200 + "{}" + "}" * 200},
        {"json_schema": '{"items":' * 2000 + "{}" + "}" * 2000},
    ],
)
async def test_an_invalid_grammar_is_refused(words: Engine, params: dict[str, str]) -> None:
    with pytest.raises(InputError, match=r"invalid|not valid"):
        words.build(Prompt([3], SamplingParams(**params), "r"))


def test_an_expression_that_is_too_large_to_write_out_is_refused() -> None:
    with pytest.raises(InputError, match=r"sampling_params.regex .*1000000 positions"):
        parse_sampling({"regex": "(a{1000}){1000}"})


async def test_a_grammar_needs_an_end_token(tmp_path: Path) -> None:
    folder = build_folder(tmp_path / "m", eos_token_id=None)
    (folder / "tokenizer_config.json").unlink()
    (folder / "generation_config.json").unlink()
    assert TextCodec(folder).end_ids == frozenset()
    with pytest.raises(InputError, match="eos_token_id"):
        new_engine(folder).build(Prompt([3], SamplingParams(regex="w1"), "r"))
