"""The bytes of tokens, and texts that grow."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders

from tests.unit.local_engine.models import byte_tokenizer, sentencepiece, word_tokenizer
from triforge.token_text import TokenText

MADE = {"bytes": byte_tokenizer, "pieces": sentencepiece, "words": word_tokenizer}
BYTE = 3  # the id of the first byte of `sentencepiece`


def plain_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("name", ["bytes", "pieces"])
@given(text=st.text(max_size=12))
@settings(max_examples=40, deadline=None)
def test_the_bytes_of_tokens_join_to_the_text(name: str, text: str) -> None:
    tokenizer = MADE[name]()
    texts = TokenText(tokenizer)
    found = b"".join(map(texts.bytes_of, plain_ids(tokenizer, text))).decode()
    assert found.removeprefix(" " if name == "pieces" else "") == text


@pytest.mark.parametrize("name", sorted(MADE))
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_lasting_text_is_the_beginning_of_every_later_one(name: str, data: st.DataObject) -> None:
    tokenizer = MADE[name]()
    texts = TokenText(tokenizer)
    ids = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), max_size=12))
    for special in (False, True):
        shown = [texts.lasting(ids[:end], special=special) for end in range(len(ids) + 1)]
        for before, after in pairwise([*shown, texts.decode(ids, special=special)]):
            assert after.startswith(before)


def test_one_more_byte_can_make_a_row_of_bytes_invalid() -> None:
    texts = TokenText(sentencepiece())
    whole = [BYTE + byte for byte in "é".encode()]
    assert texts.decode(whole) == "é"
    assert texts.decode([*whole, BYTE + 0xF0]) == "\ufffd" * 3
    assert texts.lasting(whole) == ""
    assert texts.lasting([*whole, *plain_ids(sentencepiece(), "a")]) == "é a"


def test_a_decoder_that_changes_what_it_has_joined_shows_nothing_before_the_end() -> None:
    made = byte_tokenizer()
    made.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace(" .", ".")])
    ids = plain_ids(made, "a .")
    assert TokenText(made).decode(ids) == "a."
    assert TokenText(made).lasting(ids[:2]) == ""


def test_words_without_a_decoder_and_unknown_ids() -> None:
    texts = TokenText(word_tokenizer())
    assert texts.joins_words
    assert not texts.has_bytes
    assert texts.bytes_of(plain_ids(word_tokenizer(), "w3")[0]) == b"w3"
    assert texts.bytes_of(10**6) == b""
