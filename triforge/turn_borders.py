"""The text that a chat template writes around an assistant's answer: before it, at its end, and up to the next answer.

A template is run, not read. A mark stands in the place of the answer; the text behind the mark is the border.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from triforge.errors import InputError, WeightsError

# Private-use characters stand in the place of contents. Templates neither test nor trim them.
ANSWER, NEXT = "\ue002", "\ue003"
_MARKS = tuple(chr(0xE010 + number) for number in range(6))
_TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}},
}  # fmt: skip

Message = Mapping[str, Any]
Fill = Callable[..., str]
Encode = Callable[[str], list[int]]


@dataclass(frozen=True, slots=True)
class Border:
    """The ids between an answer and the next one; `end` is the place of the token that ends the answer, None without one."""

    ids: tuple[int, ...]
    end: int | None

    def behind(self, prefix: Sequence[int], ends: Collection[int]) -> list[int]:
        """Return the ids of a prompt: those of an answer, complete or cut off, then the border.

        The ids of the prefix stay, but for one: if the answer ends with an end token that the template does not write
        there, the template's takes its place, or none.
        """
        if prefix[-1] not in ends:
            return [*prefix, *self.ids[self._held(prefix) :]]
        if self.end is not None and self.ids[self.end] == prefix[-1]:
            return [*prefix, *self.ids[self.end + 1 :]]
        return [*prefix[:-1], *self.ids]

    def _held(self, prefix: Sequence[int]) -> int:
        """Return how many ids of the border a rendered prefix holds: the end token and more."""
        if self.end is None:
            return 0
        sizes = range(min(len(self.ids), len(prefix)), self.end + 1, -1)
        return next((size for size in sizes if tuple(prefix[-size:]) == self.ids[:size]), 0)


class Borders:
    """The texts around answers in conversations of one template.

    Args:
        fill: runs the template on its fields.

    Attributes:
        opened: the prompt of the answer to one user message.
        before: the text before that answer in a finished conversation.
        closing: the text behind the last answer of a conversation.

    Raises:
        WeightsError: the template shows an answer not at all or twice, or refuses or rewrites a plain conversation.
    """

    def __init__(self, fill: Fill) -> None:
        self._fill = fill
        past = [_user("."), _answer()]
        try:
            self.opened = fill(messages=past[:1], add_generation_prompt=True)
            shown = fill(messages=past, add_generation_prompt=False)
        except InputError as error:
            raise WeightsError(f"chat template: {error.detail}") from error
        self.before, mark, self.closing = shown.partition(ANSWER)
        if not mark or ANSWER in self.closing:
            raise WeightsError(
                "chat template: expected every assistant message to be shown once; it is "
                + ("shown twice" if mark else "not shown")
            )
        if reason := self.refusal():
            raise WeightsError(f"chat template: turns cannot be added token by token: {reason}")

    def refusal(self, *, system: bool = False, tools: bool = False) -> str:
        """Return why a conversation with a system message or tools cannot be extended token by token; empty if it can."""
        turns = [(_answer if place % 2 else _user)(mark) for place, mark in enumerate(_MARKS[1:])]
        head = [{"role": "system", "content": _MARKS[0]}] if system else []
        fields = {"tools": [_TOOL] if tools else None, "add_generation_prompt": True}
        try:
            shorter, longer, longest = (
                self._fill(messages=[*head, *turns[:count]], **fields) for count in (1, 3, 5)
            )
            short = self._fill(messages=turns[:3], **fields)  # the border that is used
        except InputError as error:
            return error.detail
        for text, mark, extended in ((shorter, _MARKS[1], longer), (longer, _MARKS[3], longest)):
            known = text[: text.rfind(mark) + 1]
            if not known or not extended.startswith(known):
                return (
                    "it writes the beginning of a conversation in another way once a turn is added"
                )
        border = short.partition(_MARKS[2])[2]
        for text, mark in ((longer, _MARKS[2]), (longest, _MARKS[4])):
            behind = text.partition(mark)[2].replace(_MARKS[5], _MARKS[3])
            if behind != border:
                behind, border = (t.replace(_MARKS[3], "...") for t in (behind, border))
                return (
                    f"it writes {behind!r:.80} behind one answer and {border!r:.80} behind another"
                )
        return ""

    def lead(self, *, last: bool) -> str:
        """Return what the template writes between a prompt and the text of an answer, the conversation's `last` or not."""
        before = self.before
        if not last:
            shown = self._fill(
                messages=[_user("."), _answer(), _user(NEXT)], add_generation_prompt=False
            )
            before = shown.partition(ANSWER)[0]
        return before.removeprefix(self.opened) if before.startswith(self.opened) else ""

    def last(self, encode: Encode, ends: Collection[int]) -> Border:
        """Return the border behind the last answer of a conversation."""
        ids = encode(self.closing)
        return Border(tuple(ids), _place(ids, ends))

    def between(
        self,
        messages: Sequence[Message],
        encode: Encode,
        ends: Collection[int],
        *,
        tools: Sequence[Message] | None = None,
        answer: Message | None = None,
        generation_prompt: bool = True,
    ) -> Border:
        """Return the border between an answer and the next one, with messages in it.

        Args:
            messages: the messages between them, at least one.
            encode: returns the ids of text that stands behind other text.
            ends: ids that end an answer.
            answer: the answer as a message, where it is known; templates write results of tools by its calls.

        Raises:
            InputError: the template refuses the messages, or does not show an answer exactly once before them.
        """
        refusal: InputError | None = None
        for past in self._pasts(messages[0], answer):
            shown = {"tools": tools, "add_generation_prompt": generation_prompt}
            try:
                text = _behind(self._fill(messages=[*past, *messages], **shown), messages[0])
                marked = [{**message, "content": NEXT} for message in messages]
                opening = _behind(self._fill(messages=[*past, *marked], **shown), messages[0])
            except InputError as error:
                refusal = error
                continue
            # The text up to the first new content: the end of the answer, if there is one, is in it.
            end = _place(encode(opening.partition(NEXT)[0]), ends)
            ids = tuple(encode(text))
            if "tool_calls" not in past[-1]:
                return Border(ids, end)
            if end is not None:  # what stands before it is the rest of a call
                return Border(ids[end:], 0)
        assert refusal is not None
        raise refusal

    def _pasts(self, first: Message, answer: Message | None) -> Iterator[list[Message]]:
        """Yield conversations that may stand before a message, the fittest first; the mark is in the last answer."""
        if first["role"] == "tool":
            called: Message = {"name": first.get("name") or "tool", "arguments": {}}
            made = {"id": first.get("tool_call_id") or "call00000", "type": "function", "function": called}  # fmt: skip
            *calls, call = (answer or {}).get("tool_calls") or [made]
            for arguments in ({"_": ANSWER}, ANSWER):  # templates take them as an object or as text
                last = {**call, "function": {**call["function"], "arguments": arguments}}
                yield [
                    _user("."),
                    {"role": "assistant", "content": "", "tool_calls": [*calls, last]},
                ]
        yield [_user("."), _answer()]


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _answer(text: str = ANSWER) -> Message:
    return {"role": "assistant", "content": text}


def _place(ids: Sequence[int], ends: Collection[int]) -> int | None:
    return next((place for place, token in enumerate(ids) if token in ends), None)


def _behind(shown: str, first: Message) -> str:
    """Return the template's text behind the answer."""
    before, mark, after = shown.partition(ANSWER)
    if NEXT in before:
        raise InputError(
            "the chat template writes a message at the beginning that comes later (a system message in the middle?); send it "
            "first, or as a user message"
        )
    if not mark or ANSWER in after:
        raise InputError(
            f"the chat template does not show an assistant message exactly once before {first['role']} messages"
        )
    return after
