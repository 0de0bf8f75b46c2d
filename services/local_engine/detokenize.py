"""Token ids <-> text: the folder's tokenizer, its end tokens, and stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from services.local_engine.weights import read_json
from triforge.errors import WeightsError


def _as_ids(value: Any) -> set[int]:
    if isinstance(value, list):
        return {int(v) for v in value}
    return set() if value is None else {int(value)}


class TextCodec:
    """The text side of a model folder: `tokenizer.json`, and the end tokens that any of its configs names."""

    def __init__(self, folder: Path) -> None:
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise WeightsError(f"{file} does not exist; expected the tokenizer in the model folder")
        try:
            self.tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # tokenizers raises bare Exception
            raise WeightsError(f"{file} cannot be read: {error}") from error
        self.file = file
        self.end_ids = self._find_end_ids(folder)
        added = self.tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(token for token, entry in added.items() if entry.special)

    def _find_end_ids(self, folder: Path) -> frozenset[int]:
        ids = _as_ids(read_json(folder / "generation_config.json").get("eos_token_id"))
        ids |= _as_ids(read_json(folder / "config.json").get("eos_token_id"))
        token = read_json(folder / "tokenizer_config.json").get("eos_token")
        text = token.get("content") if isinstance(token, dict) else token
        named = self.tokenizer.token_to_id(text) if isinstance(text, str) else None
        return frozenset(ids | _as_ids(named))

    def encode(self, text: str) -> list[int]:
        """Ids of a text, with what the tokenizer adds at its begin and end."""
        ids: list[int] = self.tokenizer.encode(text).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, without special tokens."""
        text: str = self.tokenizer.decode(ids)
        return text

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
