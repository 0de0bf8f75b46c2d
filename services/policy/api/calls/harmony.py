"""The format of gpt-oss: an answer is a row of messages in channels, and calls are messages to functions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from services.policy.api.calls.json_calls import arguments_of
from services.policy.api.calls.reply import Call, Tools, calls_of
from triforge.json_text import written

_MESSAGE: Final = re.compile(
    r"(?P<head>(?:(?!<\|(?:message|end|call|return)\|>).)*?)<\|message\|>(?P<body>.*?)"
    r"(?:(?P<end><\|(?:end|call|return)\|>)|(?=<\|(?:start|channel)\|>)|\Z)",
    re.DOTALL,
)
_CHANNEL: Final = re.compile(r"<\|channel\|>\s*(\w+)")
_TO: Final = re.compile(r"\bto=(\S+?)(?=[\s<]|$)")
_TAG: Final = re.compile(r"<\|(?:start|channel|message)\|>")
_ADDRESS: Final = re.compile(r"\s*(?:t|to|to=[^\n]*)?")
_FUNCTIONS: Final = "functions."


class Harmony:
    """`<|channel|>commentary to=functions.look <|constrain|>json<|message|>{...}<|call|>`.

    The channel `analysis` is thought and not shown, unless it is to a function; `final`, and `commentary` without an address, is text.
    """

    always = True

    def shows(self, call: str) -> bool:
        """See `Format`."""
        return "<|channel|>commentary" in call and f"to={_FUNCTIONS}" in call

    def read(self, text: str, tools: Tools, *, thinks: bool) -> list[str | Call]:  # noqa: ARG002
        """See `Format`."""
        parts: list[str | Call] = []
        for to, body, ended in _messages(text):
            calls = _calls(to, body, tools) if to and ended else None
            parts += calls or [*(["\n"] if parts and body else []), body]
        return parts

    def sure(self, text: str, *, thinks: bool) -> str:  # noqa: ARG002
        """See `Format`."""
        shown: list[str] = []
        for to, body, _ in _messages(text, whole=False):
            if to:
                break
            shown += [*(["\n"] if shown and body else []), body]
        return "".join(shown)


def _messages(text: str, *, whole: bool = True) -> Iterator[tuple[str, str, bool]]:
    """Yield the messages that are no thoughts: to whom, the text, and whether it ends as calls do."""
    start = 0
    while match := _MESSAGE.match(text, start):
        start, head = match.end(), match["head"]
        if stray := _stray(head):
            yield "", stray, False
        channel, to = _CHANNEL.search(head), _TO.search(head)
        if channel is None or channel[1] != "analysis" or (to and to[1].startswith(_FUNCTIONS)):
            ended = match["end"] == "<|call|>" or start == len(text)
            yield to[1] if to else "", match["body"], ended
    rest = text[start:]
    if stray := rest if whole and not _TAG.search(rest) else _stray(rest):
        yield "", stray, False


def _stray(head: str) -> str:
    """Return the text in front of a message, which models rarely write."""
    before = _TAG.split(head, maxsplit=1)[0]
    return "" if _ADDRESS.fullmatch(before) else before


def _calls(to: str, body: str, tools: Tools) -> list[Call] | None:
    if not to.startswith(_FUNCTIONS):
        return None
    try:
        return calls_of(
            [(to.removeprefix(_FUNCTIONS), arguments_of(body and written(body)))], tools
        )
    except ValueError:
        return None
