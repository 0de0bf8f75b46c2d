"""A session as a forest of lineages: which turn a request continues, and the segments that training packs.

    messages of a request                       continues            its prompt
    system, user                                nothing: a root      the whole conversation, rendered
    system, user, ANSWER, tool                  the turn ANSWER      prompt and response of ANSWER, then what is new
    summary, user                               nothing: a root      the whole conversation, rendered

A request continues a turn if its messages begin with those of the turn and with the turn's own answer, and nothing that
follows is an assistant's. So history that was edited or compacted, sub-agents and side calls begin lineages of their own,
and two requests that continue the same turn are a fork. Whatever was sampled is never tokenised again.

A lineage from a root to a leaf is one `Segment`. Lineages share what they begin with; a sampled token is trained on in the
first lineage that holds it, in all others it is context.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from triforge.types import PlacedImage, Segment, Turn, VersionSpan

_FOREST, _TURN = 1_200, 800  # bytes beside the ids
Place = tuple[int, int, int]  # segment, and the tokens [start, end) of it


def digests(head: str, messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Of the conversation up to each message, that included; `head` is what else the prompt depends on, such as tools."""
    found, last = [], hashlib.sha256(head.encode()).hexdigest()
    for message in messages:
        last = hashlib.sha256(f"{last}{_canonical(message)}".encode()).hexdigest()
        found.append(last)
    return found


def _canonical(message: Mapping[str, Any]) -> str:
    """What makes two messages the same: clients name calls anew, trim text and leave out what is empty."""
    calls = [
        [call["function"]["name"], call["function"]["arguments"]]
        for call in message.get("tool_calls") or ()
    ]
    seen = [image.id for image in message.get("images") or ()]
    parts = [message["role"], (message["content"] or "").strip(), calls, *([seen] if seen else [])]
    return json.dumps(parts, sort_keys=True)


class Forest:
    """The turns of a session as token ids, as small as they can be kept; `size` is in bytes."""

    def __init__(self) -> None:
        self._ids: dict[str, tuple[str | None, array[int]]] = {}  # parent; new ids and response
        self._images: dict[str, tuple[PlacedImage, ...]] = {}  # new ones, of turns that have any
        self._led_to: dict[str, str] = {}  # turn by digest of its conversation
        self.answers: set[int] = set()
        self.size = _FOREST

    def add(self, turn: Turn) -> None:
        """Take in a turn, unless it is there or what it continues is not."""
        if turn.id in self._ids or (turn.parent is not None and turn.parent not in self._ids):
            return
        ids = array("i", (*turn.new_ids, *turn.output.ids))
        self._ids[turn.id] = turn.parent, ids
        if turn.images:
            self._images[turn.id] = turn.images
        self._led_to[turn.conversation] = turn.id
        self.answers.add(turn.answer)
        self.size += _TURN + ids.itemsize * len(ids)

    def continued(
        self, conversations: Sequence[str], roles: Sequence[str]
    ) -> tuple[str | None, int]:
        """The turn that a request continues, and how many of its messages that turn holds; (None, 0) for a root.

        `conversations` are the `digests` of its messages, `roles` who says them.
        """
        said = [number for number, role in enumerate(roles, start=1) if role == "assistant"]
        if not said or said[-1] == len(roles):
            return None, 0
        turn = self._led_to.get(conversations[said[-1] - 1])
        return (turn, said[-1]) if turn else (None, 0)

    def ids(self, turn: str | None) -> list[int]:
        """Prompt and response of a turn."""
        parts = []
        while turn is not None:
            turn, part = self._ids[turn]
            parts.append(part)
        return [token for part in reversed(parts) for token in part]

    def images(self, turn: str | None) -> tuple[PlacedImage, ...]:
        """The images in the prompt of a turn."""
        found: tuple[PlacedImage, ...] = ()
        while turn is not None:
            found = self._images.get(turn, ()) + found
            turn, _ = self._ids[turn]
        return found


def pack(turns: Sequence[Turn]) -> tuple[tuple[Segment, ...], dict[str, Place]]:
    """The segments of a session, one a lineage, and where each turn's response stands in them.

    A turn whose parent is not among them, which only a loss of Redis can bring about, is left out with all that follows it.
    """
    known: dict[str, Turn] = {}
    for turn in sorted(turns, key=lambda t: (t.answer, t.choice)):
        if turn.parent is None or turn.parent in known:
            known[turn.id] = turn
    inner = {turn.parent for turn in known.values()}
    segments, places = list[Segment](), dict[str, Place]()
    for leaf in (turn for turn in known.values() if turn.id not in inner):
        segments.append(_segment(_lineage(known, leaf), len(segments), places))
    return tuple(segments), places


def _lineage(known: Mapping[str, Turn], leaf: Turn) -> list[Turn]:
    """The turns from a root to a leaf."""
    found = [leaf]
    while found[-1].parent is not None:
        found.append(known[found[-1].parent])
    return found[::-1]


def _segment(lineage: Sequence[Turn], number: int, places: dict[str, Place]) -> Segment:
    """A lineage as a segment; the turns that have no place yet get one in it."""
    ids: list[int] = []
    logprobs: list[float] = []
    versions: list[VersionSpan] = []
    for turn in lineage:
        ids += turn.new_ids
        logprobs += [0.0] * len(turn.new_ids)
        start, output = len(ids), turn.output
        ids += output.ids
        if turn.id in places:
            logprobs += [0.0] * len(output.ids)
            continue
        places[turn.id] = number, start, len(ids)
        logprobs += output.logprobs
        versions += [
            VersionSpan(version=s.version, start=start + s.start, end=start + s.end)
            for s in output.versions
        ]
    images = tuple(placed for turn in lineage for placed in turn.images)
    return Segment(
        ids=tuple(ids), logprobs=tuple(logprobs), versions=tuple(versions), images=images
    )
