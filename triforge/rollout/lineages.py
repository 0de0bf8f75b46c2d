"""A session as a forest of lineages: the turn that a request continues, and the segments that training packs.

    messages of a request                       continues            its prompt
    system, user                                nothing: a root      the whole conversation, rendered
    system, user, ANSWER, tool                  the turn ANSWER      prompt and response of ANSWER, then the new messages
    summary, user                               nothing: a root      the whole conversation, rendered

A request continues a turn if its messages begin with those of the turn and the turn's own answer, and no later message is
an assistant's. So edited or compacted history, sub-agents and side calls begin their own lineages, and two requests that
continue the same turn are a fork. Sampled tokens are never tokenised again.

A lineage from a root to a leaf is one `Segment`. Lineages share their beginnings; a sampled token is trained on in the
first lineage that holds it, and is context in all others.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from triforge.types import PlacedImage, Segment, Turn, VersionSpan

_FOREST, _TURN = 1_200, 800  # bytes without the ids
Place = tuple[int, int, int]  # a segment, and the tokens [start, end) in it


def digests(head: str, messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the digest of the conversation up to and with each message; `head` is the rest of the prompt, such as tools."""
    chain, last = [], hashlib.sha256(head.encode()).hexdigest()
    for message in messages:
        last = hashlib.sha256(f"{last}{_canonical(message)}".encode()).hexdigest()
        chain.append(last)
    return chain


def _canonical(message: Mapping[str, Any]) -> str:
    """Return the identity of a message: clients rename calls, trim text and leave out empty fields."""
    calls = [
        [call["function"]["name"], call["function"]["arguments"]]
        for call in message.get("tool_calls") or ()
    ]
    seen = [image.id for image in message.get("images") or ()]
    parts = [message["role"], (message["content"] or "").strip(), calls, *([seen] if seen else [])]
    return json.dumps(parts, sort_keys=True)


class Forest:
    """The turns of a session as token ids, in little memory; `size` is in bytes."""

    def __init__(self) -> None:
        self._ids: dict[str, tuple[str | None, array[int]]] = {}  # parent; new ids and response
        self._images: dict[str, tuple[PlacedImage, ...]] = {}  # new ones, of turns that have any
        self._led_to: dict[str, str] = {}  # turn by digest of its conversation
        self.answers: set[int] = set()
        self.size = _FOREST

    def add(self, turn: Turn) -> None:
        """Add a turn, unless it is known or the turn that it continues is not."""
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
        """Return the turn that a request continues, and the number of its messages in that turn; (None, 0) for a root.

        `conversations` are the `digests` of its messages, `roles` their roles.
        """
        answers = [number for number, role in enumerate(roles, start=1) if role == "assistant"]
        if not answers or answers[-1] == len(roles):
            return None, 0
        turn = self._led_to.get(conversations[answers[-1] - 1])
        return (turn, answers[-1]) if turn else (None, 0)

    def ids(self, turn: str | None) -> list[int]:
        """Return prompt and response of a turn."""
        parts = []
        while turn is not None:
            turn, part = self._ids[turn]
            parts.append(part)
        return [token for part in reversed(parts) for token in part]

    def images(self, turn: str | None) -> tuple[PlacedImage, ...]:
        """Return the images in the prompt of a turn."""
        images: tuple[PlacedImage, ...] = ()
        while turn is not None:
            images = self._images.get(turn, ()) + images
            turn, _ = self._ids[turn]
        return images


def pack(turns: Sequence[Turn]) -> tuple[tuple[Segment, ...], dict[str, Place]]:
    """Return the segments of a session, one for each lineage, and the place of each turn's response.

    A turn whose parent was lost with Redis is left out, with all turns that follow it.
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
    """Return the turns from a root to a leaf."""
    path = [leaf]
    while path[-1].parent is not None:
        path.append(known[path[-1].parent])
    return path[::-1]


def _segment(lineage: Sequence[Turn], number: int, places: dict[str, Place]) -> Segment:
    """Make the segment of a lineage; its turns without a place get one in it."""
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
