"""Constrained output (regex, JSON schema) through the llguidance library.

Tokenizers without a decoder join their tokens with spaces. For llguidance their tokens are words that end in a space, and the
grammar gets one more space at its end: then no word looks like the beginning of a longer one.
"""

from __future__ import annotations

import json
from typing import Any

import llguidance
import numpy as np
import torch
from torch import Tensor

from services.local_engine.detokenize import TextCodec
from services.local_engine.request import SamplingParams
from triforge.chat_template import encode, tokenizer_of
from triforge.errors import InputError

_KEPT = 64


class GrammarState:
    """One constrained output in progress; `stuck` is the reason once no token continues it."""

    def __init__(self, matcher: Any, vocab: int, width: int, end_ids: frozenset[int]) -> None:
        self._matcher = matcher
        self._vocab = vocab
        self._end_ids = end_ids
        self._bits = np.zeros((width + 31) // 32, dtype=np.int32)
        self.stuck = ""

    def banned(self) -> Tensor:
        """Return bool [vocab]: the tokens that the grammar excludes next; a stuck one allows the end tokens."""
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        bits = np.unpackbits(self._bits.view(np.uint8), bitorder="little")[: self._vocab]
        banned = torch.from_numpy(bits == 0)
        if self._matcher.is_error():  # of a limit of the library
            self.stuck = f"the grammar cannot be followed: {self._matcher.get_error():.200}"
            banned[:] = True
        elif bool(banned.all()):
            self.stuck = "no token of the vocabulary continues the grammar"
        if self.stuck:
            banned[list(self._end_ids)] = False
        return banned

    def accept(self, token: int) -> bool:
        """Follow a sampled token; return whether it ends the output."""
        if token in self._end_ids:
            return True
        self._matcher.consume_token(token)
        return False

    @property
    def finished(self) -> bool:
        """Whether the output is whole and cannot go on."""
        return bool(self._matcher.is_stopped() and self._matcher.is_accepting())


class _Vocabulary:
    """The tokens for llguidance: special ones and end tokens are no text, all others are their bytes.

    Its own reader of tokenizer.json takes added tokens such as `<tool_call>` for special, yet finds them in texts. After the
    words of a tokenizer that joins them come all bytes, which are never sampled.
    """

    def __init__(self, codec: TextCodec, size: int, end_id: int) -> None:
        texts = codec.texts
        self.eos_token_id = end_id
        self.bos_token_id = None
        space = b" " if texts.joins_words else b""
        found = [texts.bytes_of(token) for token in range(size)]
        special = texts.special_ids | codec.end_ids
        self.special_token_ids = [
            token for token, text in enumerate(found) if token in special or not text
        ]
        self.tokens = [text + space for text in found]
        for token in self.special_token_ids:
            self.tokens[token] = b"\xff" + f"<{token}>".encode()
        self.tokens += [bytes([byte]) for byte in range(256)] if texts.joins_words else []
        self._ids = {text: token for token, text in enumerate(self.tokens)}
        self._longest = max(map(len, self.tokens))
        self._plain = tokenizer_of(codec.tokenizer.to_str())
        self._plain.encode_special_tokens = True  # their strings are plain text

    def __call__(self, text: str | bytes) -> list[int]:
        """Return the ids of a text as the tokenizer has them inside of a text, else those of the longest tokens."""
        wanted = text.encode() if isinstance(text, str) else text
        for before in ("", "\n"):  # some tokenizers begin every text with a space
            ids = encode(self._plain, before + wanted.decode())
            for start in range(min(len(ids), 4)):
                if b"".join(self.tokens[token] for token in ids[start:]) == wanted:
                    return ids[start:]
        return self._of_longest(wanted)

    def _of_longest(self, rest: bytes) -> list[int]:
        found = []
        while rest:
            sizes = range(min(self._longest, len(rest)), 0, -1)
            size = next(n for n in sizes if rest[:n] in self._ids)
            found.append(self._ids[rest[:size]])
            rest = rest[size:]
        return found


class GrammarCompiler:
    """Compiler of the grammars of requests for one tokenizer; it keeps the last ones."""

    def __init__(self, codec: TextCodec, vocab: int) -> None:
        self._codec = codec
        self._vocab = vocab
        self._spaced = codec.texts.joins_words
        self._width = vocab + 256 if self._spaced else vocab
        self._tokenizer: Any = None
        self._compiled: dict[str, Any] = {}

    def start(self, params: SamplingParams) -> GrammarState | None:
        """Return the grammar of a request at its start, or None."""
        if params.regex is None and params.json_schema is None:
            return None
        if self._tokenizer is None:
            self._prepare()
        grammar = self._grammar(params)
        matcher = self._compiled.get(grammar)
        if matcher is None:
            matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0)
            if matcher.is_error():
                raise InputError(f"the grammar is invalid: {matcher.get_error()}")
            if len(self._compiled) >= _KEPT:
                self._compiled.clear()
            self._compiled[grammar] = matcher
        return GrammarState(matcher.deep_copy(), self._vocab, self._width, self._codec.end_ids)

    def _grammar(self, params: SamplingParams) -> str:
        matcher = llguidance.LLMatcher
        if params.regex is not None:
            pattern = f"(?:{params.regex}) " if self._spaced else params.regex
            return str(matcher.grammar_from_regex(pattern))
        try:
            schema = json.loads(params.json_schema or "")
        except ValueError as error:
            raise InputError(f"json_schema is not valid JSON: {error}") from error
        except RecursionError:
            raise InputError("json_schema is not valid JSON: nested too deeply") from None
        if not self._spaced:
            return str(matcher.grammar_from_json_schema(json.dumps(schema)))
        return str(
            matcher.grammar_from_lark(f'start: value " "\nvalue: %json {json.dumps(schema)}')
        )

    def _prepare(self) -> None:
        ends = sorted(self._codec.end_ids)
        if not ends:
            raise InputError(
                "regex and json_schema need a model folder that names its eos_token_id"
            )
        if not (self._spaced or self._codec.texts.has_bytes):
            raise InputError(
                "regex and json_schema need a tokenizer of bytes, of SentencePiece or of whole words; this one's decoder is "
                f"{self._codec.tokenizer.decoder!r:.80}"
            )
        tokens = llguidance.TokenizerWrapper(_Vocabulary(self._codec, self._vocab, ends[0]))
        self._tokenizer = llguidance.LLTokenizer(tokens, n_vocab=self._width, eos_token=ends)
