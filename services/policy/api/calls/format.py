"""A format of calls, and the search for calls that stand between text: behind the thoughts, and outside of code."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Final, Literal, Protocol

from services.policy.api.calls.reply import Call, Tools, Written, calls_of

_THOUGHTS: Final = {"<think>": "</think>", "[THINK]": "[/THINK]"}
_END: Final = re.compile("|".join(re.escape(end) for end in _THOUGHTS.values()))
_MARKS: Final = (
    r"^(?P<lead>[ \t>]*(?:(?:[-*+]|\d{1,9}[.)])[ \t][ \t>]*)?)(?P<fence>`{3,}|~{3,})|(?<!`)(?P<tick>`{1,3})(?!`)"
    rf"|^[ \t]*(?P<thought>{'|'.join(map(re.escape, _THOUGHTS))})"
    rf"|(?P<inline>{'|'.join(map(re.escape, _THOUGHTS))})|(?P<end>{_END.pattern})"
)
_WRONG: Final = (
    64  # openings without a call, behind which all is text: each takes the time of the whole answer
)
_BARE: Final = re.compile(r"\s*(?=\{)")


def begins_thought(opening: str) -> bool:
    """Return whether the template's text before an answer begins a thought."""
    return opening.rstrip().endswith(tuple(_THOUGHTS))


class Format(Protocol):
    """One form in which models write calls."""

    always: bool
    """Whether answers without tools have this form, too."""

    def shows(self, call: str) -> bool:
        """Return whether a template that writes a call as this text teaches this form."""

    def read(self, text: str, tools: Tools, *, thinks: bool) -> list[str | Call]:
        """Return text and calls of a whole answer. `thinks`: it begins inside of a thought."""

    def sure(self, text: str, *, thinks: bool) -> str:
        """Return the part of an unfinished answer that stays text, however the answer goes on."""


class BetweenText(ABC):
    """A form whose calls begin with `opening`, between text; with `bare`, an answer may also be nothing but JSON calls."""

    opening: ClassVar[str]
    bare: ClassVar[bool] = False
    always = False

    def __init__(self) -> None:
        self._marks = re.compile(f"{_MARKS}|(?P<call>{re.escape(self.opening)})", re.MULTILINE)

    @abstractmethod
    def shows(self, call: str) -> bool:
        """See `Format`."""

    @abstractmethod
    def calls(self, text: str, start: int, tools: Tools) -> tuple[Sequence[Written], int]:
        """Return the calls that begin at a place, behind their opening, and their end; ValueError if there are none."""

    def read(self, text: str, tools: Tools, *, thinks: bool) -> list[str | Call]:
        """See `Format`."""
        parts: list[str | Call] = []
        shown = wrong = 0
        search = _Search(text, self._marks, bare=self.bare, thinks=thinks)
        while wrong < _WRONG and (place := search.next()):
            kind, begin = place
            if kind == "end":  # all that came before was a thought
                parts, shown = [], 0
                continue
            try:
                written, end = self.calls(text, search.at, tools)
            except ValueError:
                wrong += 1
                continue
            if kind == "bare" and text[end:].strip():
                continue
            search.at = end
            calls = calls_of(written, tools)
            if calls is not None:
                parts += [text[shown:begin], *calls]
                shown = end
        return [*parts, text[shown:]]

    def sure(self, text: str, *, thinks: bool) -> str:
        """See `Format`."""
        if self.opening in text or (self.bare and "{" in text):
            search = _Search(text, self._marks, bare=self.bare, thinks=thinks)
            while place := search.next():
                kind, begin = place
                if kind != "end":
                    return text[:begin]
        sizes = range(len(self.opening) - 1, 0, -1)
        held = next((size for size in sizes if text.endswith(self.opening[:size])), 0)
        return text[: len(text) - held]


class _Search:
    """Finds the openings of calls outside of thoughts and code; it goes on `at` a place."""

    def __init__(self, text: str, marks: re.Pattern[str], *, bare: bool, thinks: bool) -> None:
        self._text, self._marks = text, marks
        self._bare = bare  # no text has come yet, so calls may begin without an opening
        self._thought = thinks  # there was one
        self._missing: set[str] = set()  # ends of thoughts that do not occur any more
        self.at = _behind(_END, text, 0) if thinks else 0

    def next(self) -> tuple[Literal["call", "bare", "end"], int] | None:
        """Return the next opening, and where it begins; or the end of a thought that had no beginning."""
        text = self._text
        while True:
            if self._bare and (match := _BARE.match(text, self.at)):
                self._bare, self.at = False, match.end()
                return "bare", match.end()
            match = self._marks.search(text, self.at)
            if match is None:
                return None
            kind = match.lastgroup
            if text[self.at : match.start()].strip() or kind in ("call", "fence", "tick"):
                self._bare = False
            self.at = match.end()
            if kind == "call":
                return "call", match.start()
            if kind in ("fence", "tick"):
                self.at = _behind_code(text, match)
            elif kind == "thought":
                end = re.compile(re.escape(_THOUGHTS[match["thought"]]))
                self._thought, self.at = True, _behind(end, text, self.at)
            elif kind == "inline":
                self._skip_inline(match["inline"])
            elif not self._thought:
                self._thought = True
                return "end", match.start()

    def _skip_inline(self, begin: str) -> None:
        """Go behind a thought that begins within a line; without an end, which is searched for once, it is text."""
        end = _THOUGHTS[begin]
        place = -1 if end in self._missing else self._text.find(end, self.at)
        if place < 0:
            self._missing.add(end)
        else:
            self._thought, self.at = True, place + len(end)


def _behind(mark: re.Pattern[str], text: str, start: int) -> int:
    match = mark.search(text, start)
    return match.end() if match else len(text)


def _behind_code(text: str, opened: re.Match[str]) -> int:
    """Return the place behind code: up to the same mark on its line, else for a fence up to a line with another."""
    mark, start = opened["fence"] or opened["tick"], opened.end()
    inline = text.find(mark, start)
    if inline >= 0 and text.find("\n", start, inline) < 0:
        return inline + len(mark)
    if opened["tick"]:
        return start
    lead = opened["lead"]  # of a list or a quotation
    before = rf"[ \t{'>' * ('>' in lead)}]{{0,{len(lead) + 3}}}"
    last = re.compile(rf"^{before}{mark[0]}{{{len(mark)},}}[ \t]*$", re.MULTILINE)
    return _behind(last, text, start)
