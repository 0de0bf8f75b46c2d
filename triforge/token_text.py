"""The text behind token ids: the bytes of each token, and the part of a text that later tokens leave as it is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tokenizers import Tokenizer

from triforge.chat_template import decode

_BYTE: Final = re.compile(r"<0x([0-9A-F]{2})>")
_INCOMPLETE: Final = "\ufffd"  # for bytes that are no character, or not yet
# Decoders that look at one token at a time, or at the ones before it.
_BY_TOKEN: Final = {"BPEDecoder", "ByteFallback", "CTC", "Metaspace", "Replace", "Strip", "WordPiece"}  # fmt: skip
_JOINING: Final = {"ByteLevel", "Fuse"}


class TokenText:
    """The texts of a tokenizer's ids, as its decoder writes them. `special_ids` are not shown unless asked for.

    `joins_words`: it has no decoder, and tokens are joined with spaces. `has_bytes`: each token stands for the same bytes
    wherever it stands, but for a space at the beginning of a text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(token for token, entry in added.items() if entry.special)
        decoder = tokenizer.decoder
        steps = [] if decoder is None else list(_steps(json.loads(decoder.__getstate__())))
        kinds = {step["type"] for step in steps}
        self.joins_words = not steps
        self._bytes_as_letters = "ByteLevel" in kinds
        self._byte_tokens = "ByteFallback" in kinds
        self._spellings = [found for step in steps if (found := _spelling(step))]
        self.has_bytes = self._bytes_as_letters or self._byte_tokens or bool(self._spellings)
        self._rewrites = _rewrites(steps)

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Return the text of ids; with `special`, special tokens are in it."""
        return decode(self._tokenizer, ids, skip_special_tokens=not special)

    def lasting(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Return the beginning of the text of ids that it keeps whatever ids follow.

        An incomplete character stands for itself only at the end, and a row of byte tokens is read as a whole: one more byte
        can make all of its characters invalid.
        """
        if self._rewrites:
            return ""
        end = len(ids)
        while end and self._byte_tokens and self._is_open(ids[end - 1], special=special):
            end -= 1
        return self.decode(ids[:end], special=special).removesuffix(_INCOMPLETE)

    def _is_open(self, token: int, *, special: bool) -> bool:
        if token in self.special_ids and not special:
            return True
        return _BYTE.fullmatch(self._tokenizer.id_to_token(token) or "") is not None

    def bytes_of(self, token: int) -> bytes:
        """Return the bytes that a token stands for inside of a text; none for an unknown id."""
        piece = self._tokenizer.id_to_token(token)
        if piece is None:
            return b""
        if self._byte_tokens and (found := _BYTE.fullmatch(piece)):
            return bytes.fromhex(found[1])
        if self._bytes_as_letters:
            if all(letter in _LETTERS for letter in piece):
                return bytes(_LETTERS[letter] for letter in piece)
            return bytes(piece.encode())
        if not self.has_bytes:
            return self.decode([token], special=True).encode()
        for old, new in self._spellings:
            piece = piece.replace(old, new)
        return piece.encode()


def _letters() -> Mapping[str, int]:
    """Return the byte that each letter of a byte-level vocabulary stands for (GPT-2, `bytes_to_unicode`)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {
        chr(256 + place): byte for place, byte in enumerate(others)
    }


_LETTERS: Final = _letters()


def _steps(decoder: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the steps of a decoder, in order."""
    if decoder["type"] == "Sequence":
        for part in decoder["decoders"]:
            yield from _steps(part)
    else:
        yield decoder


def _spelling(step: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the letters that a step replaces in every token, and what it writes for them."""
    if step["type"] == "Metaspace":
        return step["replacement"], " "
    if step["type"] == "Replace" and "String" in step["pattern"]:
        return step["pattern"]["String"], step["content"]
    return None


def _rewrites(steps: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a decoder may change text that it has joined, beyond what `lasting` knows of."""
    joined = False
    for step in steps:
        kind = step["type"]
        if joined and (kind not in ("Fuse", "Strip") or step.get("stop")):
            return True
        if kind not in _BY_TOKEN | _JOINING:
            return True
        joined = joined or kind in _JOINING
    return False
