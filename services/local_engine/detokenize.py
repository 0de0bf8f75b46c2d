"""Token ids <-> text: the folder's tokenizer, its end tokens, and stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from triforge.chat_template import encode, eos_ids_of, read_text, special_tokens_of, tokenizer_of
from triforge.token_text import TokenText


class TextCodec:
    """The text side of a model folder: `tokenizer.json`, and the end tokens that any of its configs names."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "tokenizer.json"
        self.tokenizer: Tokenizer = tokenizer_of(read_text(self.file))
        self.texts = TokenText(self.tokenizer)
        named = self.tokenizer.token_to_id(special_tokens_of(folder).get("eos_token", ""))
        self.end_ids = frozenset(eos_ids_of(folder)) | ({named} if named is not None else set())

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, with those that the tokenizer adds at its ends."""
        return encode(self.tokenizer, text, add_special_tokens=True)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without special tokens."""
        return self.texts.decode(ids)

    def stop_in(self, ids: Sequence[int], stops: Sequence[str]) -> str | None:
        """Return the first of the stop strings in the text of ids, with special tokens or without."""
        if not stops:
            return None
        texts = [self.decode(ids)]
        if not self.texts.special_ids.isdisjoint(ids):
            texts.append(self.texts.decode(ids, special=True))
        return next((stop for stop in stops if any(stop in text for text in texts)), None)

    def final_text(self, ids: Sequence[int], matched: int | str | None) -> str:
        """Return the text of an output, which ends before the stop token or stop string that was matched."""
        if isinstance(matched, int) and ids and ids[-1] == matched:
            ids = ids[:-1]
        text = self.decode(ids)
        if not isinstance(matched, str):
            return text
        head, found, _ = text.partition(matched)
        return (
            head if found else self._before(ids, self.texts.decode(ids, special=True).find(matched))
        )

    def growing_text(self, ids: Sequence[int], stops: Sequence[str]) -> str:
        """Return the part of the text of an unfinished output with which its final text begins, however it goes on."""
        text = self.texts.lasting(ids)
        text = text[: _begun(text, stops)]
        if stops and not self.texts.special_ids.isdisjoint(ids):
            whole = self.texts.lasting(ids, special=True)
            text = min(text, self._before(ids, _begun(whole, stops)), key=len)
        return text

    def _before(self, ids: Sequence[int], at: int) -> str:
        """Return the text without special tokens of the first `at` characters of the one with them."""
        end = len(ids)
        while len(begin := self.texts.decode(ids[:end], special=True)) > at:
            end -= 1
        rest = ""
        if len(begin) < at and ids[end] not in self.texts.special_ids:
            rest = self.texts.decode(ids, special=True)[len(begin) : at]
        return self.decode(ids[:end]) + rest


def _begun(text: str, stops: Sequence[str]) -> int:
    """Return where the longest beginning of a stop string with which a text ends begins, or the end of the text."""
    return min((_begun_by(text, stop) for stop in stops), default=len(text))


def _begun_by(text: str, stop: str) -> int:
    at = max(0, len(text) - len(stop) + 1)
    while (at := text.find(stop[0], at)) >= 0:
        if stop.startswith(text[at:]):
            return at
        at += 1
    return len(text)
