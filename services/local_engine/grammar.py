"""Constrained output (regex, JSON schema) through the llguidance library, which is imported on first use."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from services.local_engine.detokenize import TextCodec
from services.local_engine.request import SamplingParams
from triforge.errors import InputError


class GrammarState:
    """One constrained output in progress; a `TokenFilter`.

    Args:
        matcher: llguidance's matcher, at its start.
        vocab: size of the model's vocabulary.
    """

    def __init__(self, matcher: Any, vocab: int) -> None:
        self._matcher = matcher
        self._vocab = vocab
        self._bits = np.zeros((vocab + 31) // 32, dtype=np.int32)

    def banned(self) -> Tensor:
        """Bool [vocab]: tokens that the grammar excludes next."""
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        bits = np.unpackbits(self._bits.view(np.uint8), bitorder="little")[: self._vocab]
        return torch.from_numpy(bits == 0)

    def accept(self, token: int) -> bool:
        """Take a sampled token; True when the grammar is complete and nothing may follow."""
        self._matcher.consume_token(token)
        return bool(self._matcher.is_stopped())


class GrammarCompiler:
    """Compiles the grammars of requests for one tokenizer.

    Args:
        codec: the tokenizer.
        vocab: size of the model's vocabulary.
    """

    def __init__(self, codec: TextCodec, vocab: int) -> None:
        self._codec = codec
        self._vocab = vocab
        self._library: Any = None
        self._tokenizer: Any = None

    def start(self, params: SamplingParams) -> GrammarState | None:
        """The grammar that a request asks for, or None.

        Raises:
            InputError: llguidance is not installed, or the grammar is invalid.
        """
        if params.regex is None and params.json_schema is None:
            return None
        self._prepare()
        matcher_class = self._library.LLMatcher
        try:
            if params.regex is not None:
                grammar = matcher_class.grammar_from_regex(params.regex)
            else:
                grammar = matcher_class.grammar_from_json_schema(params.json_schema)
        except ValueError as error:
            raise InputError(f"the grammar is invalid: {error}") from error
        matcher = matcher_class(self._tokenizer, grammar)
        if matcher.is_error():
            raise InputError(f"the grammar is invalid: {matcher.get_error()}")
        return GrammarState(matcher, self._vocab)

    def _prepare(self) -> None:
        if self._tokenizer is not None:
            return
        try:
            self._library = importlib.import_module("llguidance")
        except ImportError as error:
            raise InputError(
                "regex and json_schema need the llguidance package: pip install 'triforge[local-engine]'"
            ) from error
        self._tokenizer = self._library.LLTokenizer(
            str(self._codec.file), n_vocab=self._vocab, eos_token=sorted(self._codec.end_ids)
        )
