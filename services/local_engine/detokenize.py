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
        """Return the ids of a text, with those that the tokenizer adds at its ends."""
        return encode(self.tokenizer, text, add_special_tokens=True)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without special tokens."""
        return decode(self.tokenizer, ids)

    def final_text(self, ids: Sequence[int], matched: int | str | None) -> str:
        """Return the text of an output, which ends before the stop token or stop string that was matched."""
        if isinstance(matched, int) and ids and ids[-1] == matched:
            ids = ids[:-1]
        text = self.decode(ids)
        return text.partition(matched)[0] if isinstance(matched, str) else text
