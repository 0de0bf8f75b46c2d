from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from services.local_engine.detokenize import TextCodec
from services.local_engine.request import Prompt, SamplingParams, parse_sampling
from services.local_engine.sequence import Sequence
from tests.unit.local_engine.models import END, build_folder
from triforge.errors import InputError, WeightsError


@pytest.fixture
def codec(byte_folder: Path) -> TextCodec:
    return TextCodec(byte_folder)


def test_a_text_is_a_rendered_prompt_as_transformers_and_so_sglang_read_it(folder: Path) -> None:
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    text = "w3 </s> w4"
    ids = TextCodec(folder).encode(text)
    assert ids == theirs(text).input_ids
    assert ids[1] == END


def stop_of(codec: TextCodec, stop: tuple[str, ...], ids: list[int]) -> list[str | None]:
    """The stop string with which a sample ends after each of these tokens."""
    found = []
    seq = Sequence(
        Prompt([5], SamplingParams(stop=list(stop)), "r"), "r", 0, 99, frozenset(), codec
    )
    for token in ids:
        seq.finish = None
        seq.add(token, 0.0, torch.zeros(1, 1), 0)
        found.append(seq.finish["matched"] if seq.finish else None)
    return found


def test_a_stop_string_is_found_across_tokens_and_at_its_last_token(codec: TextCodec) -> None:
    found = stop_of(codec, ("世界", "###"), codec.encode("say 世界"))
    assert found.index("世界") == len(found) - 1


def test_a_stop_string_is_found_behind_special_tokens_that_are_skipped(codec: TextCodec) -> None:
    a, b = codec.encode("a"), codec.encode("b")
    assert stop_of(codec, ("ab",), [*a, *[END] * 20, *b])[-1] == "ab"


@pytest.mark.parametrize(
    ("stop", "texts", "final"),
    [
        ("</s>", ["a", END], "a"),
        ("</s>b", ["xa", END, "b"], "xa"),
        ("a</s>", ["xa", END], "x"),
        ("a</s>bc", ["xa", END, "bc"], "x"),
        ("s>", ["世", END], "世"),
    ],
)
def test_a_stop_string_may_be_a_special_token(
    codec: TextCodec, stop: str, texts: list[str | int], final: str
) -> None:
    ids = [i for text in texts for i in ([text] if isinstance(text, int) else codec.encode(text))]
    assert stop_of(codec, (stop,), ids)[-1] == stop
    assert codec.final_text(ids, stop) == final
    assert all(final.startswith(codec.growing_text(ids[:n], [stop])) for n in range(len(ids)))


def test_an_unfinished_text_holds_back_what_may_change(codec: TextCodec) -> None:
    ids = codec.encode("a 😀 bST")
    shown = [codec.growing_text(ids[: n + 1], ["STOP"]) for n in range(len(ids))]
    assert shown == ["a", "a ", "a ", "a ", "a ", "a 😀", "a 😀 ", "a 😀 b", "a 😀 b", "a 😀 b"]


@pytest.mark.parametrize(
    ("end", "finish"),
    [
        ("end token", {"type": "stop", "matched": END}),
        ("stop string", {"type": "stop", "matched": "ab"}),
        ("none", {"type": "length", "length": 2}),
    ],
)
def test_an_answer_that_ends_with_its_last_allowed_token_is_whole(
    codec: TextCodec, end: str, finish: dict[str, Any]
) -> None:
    params = SamplingParams(stop=["ab"] if end == "stop string" else [])
    seq = Sequence(Prompt([5], params, "r"), "r", 0, 2, frozenset({END}), codec)
    for token in [*codec.encode("a"), *([END] if end == "end token" else codec.encode("b"))]:
        seq.add(token, 0.0, torch.zeros(1, 1), 0)
    assert seq.finish == finish


def test_stop_strings_match_words_that_are_joined_with_spaces(folder: Path) -> None:
    words = TextCodec(folder)
    assert stop_of(words, ("w3 w4",), words.encode("w9 w3 w4")) == [None, None, "w3 w4"]


def test_end_tokens_come_from_all_files_of_the_folder(tmp_path: Path) -> None:
    folder = build_folder(tmp_path / "m")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 8]}))
    assert TextCodec(folder).end_ids == {END, 7, 8}


def test_a_missing_or_broken_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"tokenizer\.json is missing"):
        TextCodec(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(WeightsError, match=r"tokenizer\.json: not a tokenizer"):
        TextCodec(tmp_path)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"n": True}, "n is True"),
        ({"stop": ["a", ""]}, "stop.1 is ''"),
        ({"logit_bias": {"-5": 1.0}}, "logit_bias: expected ids of tokens"),
        ({"regex": "a", "json_schema": "{}"}, "exclude each other"),
        (3, "expected an object"),
    ],
)
def test_a_wrong_sampling_parameter_is_refused_by_name(given: object, says: str) -> None:
    with pytest.raises(InputError, match=says):
        parse_sampling(given)
