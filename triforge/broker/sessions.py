"""Sessions in flight, between env_adapter and the policy service: their keys and their turns.

session         OpenSession              env_adapter, when it is made
session-time    nothing                  env_adapter, likewise; until the session expires, by the clock of the server
session-closed  the reason of its end    env_adapter
session-asked   number of an answer      policy service, by idempotency key, before it samples
session-turns   turns of an answer       policy service, before the answer leaves and the session is closed; first writer wins
session-image   image, base64            policy service, before the turn that shows it; until a rollout worker stores it
"""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from typing import Final

from pydantic import TypeAdapter

from triforge.broker.protocol import PAYLOAD_TTL_S, Broker, key
from triforge.errors import ConflictError
from triforge.types import ImageRef, OpenSession, Turn

_TURNS: Final = TypeAdapter(tuple[Turn, ...])
Turns = tuple[Turn, ...]


class SessionLog:
    """Sessions in flight, in a broker. All methods raise `UnavailableError` while it is away."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    async def open(self, session: OpenSession, left_s: float) -> None:
        """Open a session to requests for so many seconds; one that is opened again has another key from then on."""
        names = key("session", session.id), key("session-time", session.id)
        await self.broker.delete(*names)
        await self.broker.put(names[0], session.model_dump_json(), left_s + PAYLOAD_TTL_S)
        await self.broker.put(names[1], "", left_s)

    async def close(self, session_id: str, reason: str) -> None:
        """Close a session to requests; the first reason stays."""
        await self.broker.put(key("session-closed", session_id), reason)

    async def find(
        self, session_id: str, *, number: bool = False
    ) -> tuple[OpenSession | None, str, int]:
        """Return a session, the reason of its end (or empty) and, with `number`, the number of a new answer (else 0)."""
        names = [key(kind, session_id) for kind in ("session", "session-closed", "session-time")]
        if number:
            count, (text, closed, time) = await self.broker.count(_counter(session_id), *names)
        else:
            count, (text, closed, time) = 0, await self.broker.get(*names)
        if time is None:
            closed = closed or "it has expired"
        return OpenSession.model_validate_json(text) if text else None, closed or "", count

    async def reserve(self, session_id: str) -> int:
        """Return the number of a new answer."""
        return (await self.broker.count(_counter(session_id)))[0]

    async def repeated(self, session_id: str, number: int, idempotency_key: str, body: str) -> int:
        """Return the number of the answer to this request, which is new at first; ConflictError for another request."""
        place = key("session-asked", f"{session_id}:{_digest(idempotency_key)}")
        mark = _digest(body)
        if await self.broker.put(place, f"{number} {mark}"):
            return number
        (text,) = await self.broker.get(place)
        earlier, _, known = (text or f"{number} {mark}").partition(" ")
        if known != mark:
            raise ConflictError(
                "Idempotency-Key: it was used for another request of this session; send a new key"
            )
        return int(earlier)

    async def keep(self, session_id: str, turns: Sequence[Turn]) -> Turns:
        """Store the turns of one answer; return those that count, which another process may have stored before.

        Raises:
            ConflictError: the session was closed; what counts of it was read.
        """
        place, closed = _place(session_id, turns[0].answer), key("session-closed", session_id)
        text = _TURNS.dump_json(tuple(turns)).decode()
        stored = await self.broker.put_before(place, text, closed)
        if stored:
            return tuple(turns)
        if stored is None:
            (reason,) = await self.broker.get(closed)
            raise ConflictError(
                f"session {session_id} is over: {reason}; this answer came later and counts for nothing, make a new one"
            )
        (known,) = await self.broker.get(place)
        return tuple(turns) if known is None else _TURNS.validate_json(known)

    async def keep_image(self, session_id: str, image: ImageRef, data: bytes) -> None:
        """Store an image of a session, once."""
        await self.broker.put(_image(session_id, image), b64encode(data).decode())

    async def image(self, session_id: str, image: ImageRef) -> bytes | None:
        """Return an image of a session; None if it is not stored here."""
        (text,) = await self.broker.get(_image(session_id, image))
        return None if text is None else b64decode(text)

    async def forget_images(self, images: Sequence[tuple[str, ImageRef]]) -> None:
        """Delete images, each with its session, that are stored elsewhere."""
        if images:
            await self.broker.delete(*(_image(*each) for each in images))

    async def read(self, session_id: str, answers: Iterable[int]) -> Turns:
        """Return the turns of these answers, as far as they are stored."""
        places = [_place(session_id, number) for number in answers]
        texts = await self.broker.get(*places)
        return tuple(turn for text in texts if text for turn in _TURNS.validate_json(text))

    async def all(self, session_id: str) -> Turns:
        """Return all turns, in the order of their requests."""
        return await self.read(session_id, range(1, await self.reserve(session_id)))

    async def forget(self, session_id: str) -> None:
        """Delete the turns of a session that are stored elsewhere."""
        answers = range(1, await self.reserve(session_id) + 1)
        await self.broker.delete(*(_place(session_id, number) for number in answers))


def _counter(session_id: str) -> str:
    return key("session-count", session_id)


def _image(session_id: str, image: ImageRef) -> str:
    return key("session-image", f"{session_id}:{image.id}")


def _place(session_id: str, answer: int) -> str:
    return key("session-turns", f"{session_id}:{answer}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
