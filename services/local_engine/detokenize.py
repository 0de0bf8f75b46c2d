"""Token ids <-> text: the folder's tokenizer, its end tokens, and stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from triforge.chat_template import (
    decode,
    encode,
    eos_ids_of,
    read_text,
    special_tokens_of,
    tokenizer_of,
)


class TextCodec:
    """The text side of a model folder: `tokenizer.json`, and the end tokens that any of its configs names."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "tokenizer.json"
        self.tokenizer: Tokenizer = tokenizer_of(read_text(self.file))
        named = self.tokenizer.token_to_id(special_tokens_of(folder).get("eos_token", ""))
        self.end_ids = frozenset(eos_ids_of(folder)) | ({named} if named is not None else set())
        added = self.tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(token for token, entry in added.items() if entry.special)

    def encode(self, text: str) -> list[int]:
        """Ids of a text, with what the tokenizer adds at its begin and end."""
        return encode(self.tokenizer, text, add_special_tokens=True)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, without special tokens."""
        return decode(self.tokenizer, ids)

    def final_text(self, ids: Sequence[int], matched: int | str | None) -> str:
        """The text of an output; it ends before the stop token or stop string that was matched."""
        if isinstance(matched, int) and ids and ids[-1] == matched:
            ids = ids[:-1]
        text = self.decode(ids)
        return text.partition(matched)[0] if isinstance(matched, str) else text


class StopStrings:
    """Finds stop strings in a growing output, also across the borders of tokens."""

    def __init__(self, codec: TextCodec, stops: tuple[str, ...]) -> None:
        self._codec, self._stops = codec, stops
        # A token of plain text carries at least one byte, so this many tokens hold any new match; the four more keep a
        # character cut at the window's start, or a stripped leading space, away from it.
        self._window = max(len(s.encode()) for s in stops) + 4

    def find(self, ids: list[int]) -> str | None:
        """The stop string that the last token completed, or None."""
        tail = ids[-self._window :]
        if not self._codec.special_ids.isdisjoint(tail):
            tail = ids  # special tokens carry no bytes
        text = self._codec.decode(tail)
        return next((stop for stop in self._stops if stop in text), None)
