"""Answers in the form of a dialect: whole, or as the server-sent events of a stream.

`Dialect` decides what is new in each piece of each sample. A dialect adds names and shapes: the events before a sample's first
text, of further text, of its end, and after the last sample.
"""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, Generic, Protocol, TypeVar

from services.policy.api.calls.parser import CallParser
from services.policy.api.calls.reply import ParsedReply
from services.policy.engines.protocol import Partial
from services.policy.gateway import Answer
from triforge.errors import PolicyError, TriforgeError
from triforge.rendering import Renderer
from triforge.types import GenerateOutput
from triforge.web.problems import openai_error

_log = logging.getLogger(__name__)
Pieces = AsyncGenerator[tuple[int, Partial], None]


class Request(Protocol):
    """The part of a request that every dialect reads."""

    def parser(self, renderer: Renderer) -> CallParser:
        """Return the reader of the model's answers."""

    @property
    def wants_logprobs(self) -> bool:
        """Whether tokens are answered with log-probabilities."""


_R = TypeVar("_R", bound=Request)


class Dialect(ABC, Generic[_R]):
    """The answer to one request.

    `version` is the active weight version when the stream begins. In a session, ids of answers end with `name`.
    """

    def __init__(
        self, body: _R, *, model: str, renderer: Renderer, version: int, name: str = ""
    ) -> None:
        self.body, self.model, self.name = body, model, name
        self._renderer, self._version = renderer, version
        self._parser = body.parser(renderer)
        self._sent: dict[int, tuple[str, int]] = {}  # text and number of tokens, by sample
        self._ended: list[Partial] = []

    @abstractmethod
    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """Return the answers to all prompts of a request as one object."""

    def _parse(self, answer: GenerateOutput | Partial, number: int) -> ParsedReply:
        return self._parser.parse(answer.text, answer.ids).named(
            self.name and f"{self.name}-{number}"
        )

    # ---- the stream ----

    def take(self, number: int, piece: Partial) -> Iterator[str]:
        """Yield the events of a piece of a sample. A call of a tool is sent when it is whole.

        Raises:
            PolicyError: the text does not begin with what was sent; no client could join the two.
        """
        if number not in self._sent:
            self._sent[number] = ("", 0)
            yield from self._begin(number, piece)
        text, tokens = self._sent[number]
        if piece.finish is None:
            reply = ParsedReply(self._parser.visible(piece.text, piece.ids))
        else:
            reply = self._parse(piece, number)
        if not reply.text.startswith(text):
            raise PolicyError(
                f"the answer no longer begins with the {len(text)} characters that were streamed; ask again"
            )
        new = reply.text[len(text) :]
        if new or (self.body.wants_logprobs and len(piece.ids) > tokens):
            yield from self._text(number, piece, new)
            self._sent[number] = (text + new, len(piece.ids))
        if piece.finish is not None:
            self._ended.append(piece)
            yield from self._end(number, piece, reply)

    def end(self) -> Iterable[str]:
        """Return the events after the last piece."""
        return ()

    def broken_off(self, error: TriforgeError) -> str:
        """Return the event in place of the rest."""
        return event({"error": openai_error(error.kind, error.status, error.detail)})

    @staticmethod
    def counts(answers: Sequence[Answer]) -> tuple[int, int, int]:
        """Return the tokens of prompts, of outputs, and of prompts from a cache."""
        outputs = [output for answer in answers for output in answer.reply.outputs]
        return (
            sum(len(answer.reply.prompt_ids) for answer in answers),
            sum(len(output.ids) for output in outputs),
            sum(answer.reply.cached_tokens for answer in answers),
        )

    def streamed_counts(self) -> tuple[int, int, int]:
        """Return the same of the samples of one prompt that have ended."""
        return (
            max((piece.prompt_tokens for piece in self._ended), default=0),
            sum(len(piece.ids) for piece in self._ended),
            max((piece.cached_tokens for piece in self._ended), default=0),
        )

    def _begin(self, number: int, piece: Partial) -> Iterable[str]:  # noqa: ARG002
        """Return the events before the first text of a sample."""
        return ()

    @abstractmethod
    def _text(self, number: int, piece: Partial, new: str) -> Iterable[str]:
        """Return the events of further text; `_sent` holds what was sent before."""

    @abstractmethod
    def _end(self, number: int, piece: Partial, reply: ParsedReply) -> Iterable[str]:
        """Return the events of a sample's end, after its text."""


async def events(pieces: Pieces, dialect: Dialect[Any]) -> AsyncIterator[str]:
    """Wait for the first piece, so that a failure before it has a status of its own; return all events."""
    try:
        first = await anext(pieces)
    except BaseException:
        await pieces.aclose()
        raise
    return _events(first, pieces, dialect)


async def _events(
    first: tuple[int, Partial], pieces: Pieces, dialect: Dialect[Any]
) -> AsyncGenerator[str, None]:
    async with aclosing(pieces):
        try:
            for line in dialect.take(*first):
                yield line
            async for piece in pieces:
                for line in dialect.take(*piece):
                    yield line
        except TriforgeError as error:
            _log.warning("a streamed answer broke off: %s", error.detail)
            yield dialect.broken_off(error)
            return
        for line in dialect.end():
            yield line


def event(body: dict[str, Any]) -> str:
    """Return one server-sent event."""
    return f"data: {json.dumps(body)}\n\n"


def typed_event(kind: str, **body: Any) -> str:
    """Return one server-sent event with a type."""
    return f"event: {kind}\n" + event({"type": kind, **body})
