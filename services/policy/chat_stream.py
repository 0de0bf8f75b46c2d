"""A chat answer as it is written: server-sent `chat.completion.chunk` events from pieces of samples."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

from services.policy.openai import ChatRequest, head, logprobs_of, usage_of
from services.policy.sglang_parsing import Partial
from services.policy.tools import Call, Said, begun, said
from triforge.errors import TriforgeError
from triforge.rendering import Renderer

_log = logging.getLogger(__name__)


class Deltas:
    """What is new in each piece, as events.

    Args:
        request: what was asked.
        model: name in the events.
        renderer: decodes single tokens for `logprobs`.
        version: live weight version when it began.
    """

    def __init__(
        self, request: ChatRequest, *, model: str, renderer: Renderer, version: int
    ) -> None:
        self._request = request
        self._renderer = renderer
        self._head = head("chat.completion.chunk", model, version)
        self._text: dict[int, str] = {}
        self._tokens: dict[int, int] = {}
        self._ended: dict[int, Partial] = {}

    def take(self, number: int, piece: Partial) -> list[str]:
        """The events that tell of a piece."""
        events = []
        if number not in self._text:
            self._text[number], self._tokens[number] = "", 0
            events.append(self._event(number, {"role": "assistant", "content": ""}))
        sent, done = self._text[number], self._tokens[number]
        found = self._said(piece)
        # A stop string that was sent in part is cut off at the end; what was sent cannot be taken back.
        new = found.text.removeprefix(sent) if found.text.startswith(sent) else ""
        if new or (self._request.logprobs and len(piece.ids) > done):
            events.append(self._event(number, {"content": new}, shown=self._shown(piece, done)))
            self._text[number], self._tokens[number] = sent + new, len(piece.ids)
        if piece.finish is not None:
            self._ended[number] = piece
            if found.calls:
                events.append(self._event(number, {"tool_calls": _numbered(found.calls)}))
            newest = max((span.version for span in piece.versions), default=None)
            if newest is not None:
                self._head = {**self._head, "metadata": {"weight_version": str(newest)}}
            events.append(self._event(number, {}, finish=found.finish(piece.finish)))
        return events

    def end(self) -> list[str]:
        """The events after the last piece."""
        events = []
        options = self._request.stream_options
        if options is not None and options.include_usage:
            pieces = list(self._ended.values())
            usage = usage_of(
                max((piece.prompt_tokens for piece in pieces), default=0),
                sum(len(piece.ids) for piece in pieces),
                max((piece.cached_tokens for piece in pieces), default=0),
            )
            events.append(_event({**self._head, "choices": [], "usage": usage}))
        return [*events, "data: [DONE]\n\n"]

    def _said(self, piece: Partial) -> Said:
        """What may be told of a piece; a call of a tool is told when it is whole."""
        names = self._request.tool_names
        return Said(begun(piece.text, names)) if piece.finish is None else said(piece.text, names)

    def _shown(self, piece: Partial, done: int) -> dict[str, Any] | None:
        if not self._request.logprobs:
            return None
        return logprobs_of(piece.ids[done:], piece.logprobs[done:], self._renderer)

    def _event(
        self,
        number: int,
        delta: dict[str, Any],
        *,
        finish: str | None = None,
        shown: dict[str, Any] | None = None,
    ) -> str:
        choice = {"index": number, "delta": delta, "finish_reason": finish, "logprobs": shown}
        return _event({**self._head, "choices": [choice]})


async def begin(
    pieces: AsyncGenerator[tuple[int, Partial], None], deltas: Deltas
) -> AsyncIterator[str]:
    """Wait for the first piece, so that what fails before it still has a status of its own; then all events.

    Raises:
        TriforgeError: nothing could be sampled. A later failure is an event with `error`, and the stream ends without
            `[DONE]`.
    """
    try:
        first = await anext(pieces)
    except BaseException:
        await pieces.aclose()
        raise
    return _events(first, pieces, deltas)


async def _events(
    first: tuple[int, Partial], pieces: AsyncGenerator[tuple[int, Partial], None], deltas: Deltas
) -> AsyncGenerator[str, None]:
    async with aclosing(pieces):
        for event in deltas.take(*first):
            yield event
        try:
            async for piece in pieces:
                for event in deltas.take(*piece):
                    yield event
        except TriforgeError as error:
            _log.warning("a streamed answer broke off: %s", error.detail)
            said = {"message": error.detail, "type": error.kind, "code": error.status}
            yield _event({"error": said})
            return
        for event in deltas.end():
            yield event


def _numbered(calls: Sequence[Call]) -> list[dict[str, Any]]:
    return [{"index": number, **call.shown()} for number, call in enumerate(calls)]


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body)}\n\n"
