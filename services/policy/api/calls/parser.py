"""The reader of a model's answers: in the format that the chat template of the active model writes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from services.policy.api.calls.between_text import Glm, Hermes, Llama, Mistral
from services.policy.api.calls.format import Format, begins_thought
from services.policy.api.calls.harmony import Harmony
from services.policy.api.calls.json_calls import read_calls
from services.policy.api.calls.reply import Call, ParsedReply, Tools, calls_of
from triforge.rendering import Renderer

# The first whose form a template writes; a template that writes none of them is read as the last.
FORMATS: Final[Sequence[Format]] = (Harmony(), Mistral(), Glm(), Llama(), Hermes())


def format_of(call: str) -> Format:
    """Return the form in which a template writes a call."""
    return next((form for form in FORMATS if form.shows(call)), FORMATS[-1])


class CallParser:
    """Reads calls of `tools` out of answers. A `forced` answer is one JSON call and nothing else.

    The text that engines return leaves out special tokens, with which some forms mark calls; so an answer is read from its ids
    where it has such tokens.
    """

    def __init__(
        self,
        tools: Tools | None = None,
        form: Format = FORMATS[-1],
        *,
        forced: bool = False,
        thinks: bool = False,
        tokens: Tokens | None = None,
    ) -> None:
        self._tools, self._form, self._forced, self._thinks = tools or {}, form, forced, thinks
        self._tokens = tokens
        self._reads = bool(self._tools) or form.always

    @classmethod
    def of(cls, renderer: Renderer, tools: Tools, *, forced: bool = False) -> CallParser:
        """Return the reader of answers of the renderer's model."""
        return cls(
            tools,
            format_of(renderer.call_text),
            forced=forced,
            thinks=begins_thought(renderer.opening),
            tokens=Tokens(renderer.decode, renderer.special_texts, renderer.eos_ids),
        )

    def parse(self, text: str, ids: Sequence[int] = ()) -> ParsedReply:
        """Read a whole answer."""
        if self._forced:
            call = self._only(text)
            return ParsedReply(text) if call is None else ParsedReply("", (call,))
        if not self._reads:
            return ParsedReply(text)
        marked, plain = self._marked(text, ids)
        parts = self._form.read(marked, self._tools, thinks=self._thinks)
        calls = tuple(part for part in parts if isinstance(part, Call))
        whole = plain("".join(part for part in parts if isinstance(part, str)))
        return ParsedReply(whole.rstrip() if calls else whole, calls)

    def visible(self, text: str, ids: Sequence[int] = ()) -> str:
        """Return the part of an unfinished answer that stays text, however the answer goes on."""
        if self._forced:
            return ""
        if not self._reads:
            return text
        marked, plain = self._marked(text, ids)
        return plain(self._form.sure(marked, thinks=self._thinks)).rstrip()

    def _marked(self, text: str, ids: Sequence[int]) -> tuple[str, Callable[[str], str]]:
        return (text, str) if self._tokens is None else self._tokens.marked(text, ids)

    def _only(self, text: str) -> Call | None:
        try:
            written, end = read_calls(text, len(text) - len(text.lstrip()))
        except ValueError:
            return None
        calls = None if text[end:].strip() else calls_of(written, self._tools)
        return calls[0] if calls and len(calls) == 1 else None


class Tokens:
    """Special tokens in answers: `texts` by id, of which `ends` end an answer."""

    def __init__(
        self, decode: Callable[..., str], texts: Mapping[int, str], ends: Sequence[int]
    ) -> None:
        self._decode, self._texts, self._ends = decode, texts, ends

    def marked(self, text: str, ids: Sequence[int]) -> tuple[str, Callable[[str], str]]:
        """Return an answer with its special tokens, and what takes them out again."""
        size = len(ids)
        while size and ids[size - 1] in self._ends:
            size -= 1
        held = {self._texts[token] for token in self._texts.keys() & set(ids[:size])}
        if not held:
            return text, str
        shown = self._decode(ids[:size])
        marked = self._decode(ids[:size], skip_special_tokens=False)
        # The engine holds back, or cuts off, the last characters.
        same = text if shown.startswith(text) else os.path.commonprefix([shown, text])  # noqa: RUF071 - of characters
        cut = len(shown) - len(same)
        while cut and marked:
            special = next((special for special in held if marked.endswith(special)), "")
            marked = marked.removesuffix(special) if special else marked[:-1]
            cut -= not special

        def plain(part: str) -> str:
            for special in held:
                part = part.replace(special, "")
            return part

        return marked, plain
