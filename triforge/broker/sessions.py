"""What is in flight of sessions: who may ask the model, and the turns so far. Between env_adapter and the policy service.

session         OpenSession          env_adapter, when it is made
session-closed  why it has ended     env_adapter
session-asked   number of an answer  policy service, by idempotency key, before it samples
session-turns   turns of an answer   policy service, before the answer leaves; first writer wins
session-image   image, base64        policy service, before the turn that has seen it; until a rollout worker has taken it
"""

from __future__ import annotations

import hashlib
import time
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
    """Sessions in flight. All methods raise `UnavailableError` while the broker is away."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def open(self, session: OpenSession) -> None:
        """Let an agent ask the model; a session that is opened again has another key from then on."""
        await self._broker.delete(key("session", session.id))
        left_s = session.expires_at - time.time() + PAYLOAD_TTL_S
        await self._broker.put(key("session", session.id), session.model_dump_json(), left_s)

    async def close(self, session_id: str, why: str) -> None:
        """Let nobody ask any more; the first reason stays."""
        await self._broker.put(key("session-closed", session_id), why)

    async def find(
        self, session_id: str, *, number: bool = False
    ) -> tuple[OpenSession | None, str, int]:
        """A session, why it was closed (empty if it was not), and with `number` the number of an answer (else 0)."""
        names = key("session", session_id), key("session-closed", session_id)
        if number:
            count, (found, closed) = await self._broker.count(_counter(session_id), *names)
        else:
            count, (found, closed) = 0, await self._broker.get(*names)
        return OpenSession.model_validate_json(found) if found else None, closed or "", count

    async def reserve(self, session_id: str) -> int:
        """The number of an answer."""
        return (await self._broker.count(_counter(session_id)))[0]

    async def repeated(self, session_id: str, number: int, asked: str, body: str) -> int:
        """The number that the same request with this idempotency key has, at first this one; ConflictError for another request."""
        place, mark = key("session-asked", f"{session_id}:{_digest(asked)}"), _digest(body)
        if await self._broker.put(place, f"{number} {mark}"):
            return number
        (text,) = await self._broker.get(place)
        earlier, _, known = (text or f"{number} {mark}").partition(" ")
        if known != mark:
            raise ConflictError(
                "Idempotency-Key: it was used for another request of this session; send a new key"
            )
        return int(earlier)

    async def keep(self, session_id: str, turns: Sequence[Turn]) -> Turns:
        """Keep the turns of one answer; returns those that count, which another process may have kept before."""
        place = _place(session_id, turns[0].answer)
        if await self._broker.put(place, _TURNS.dump_json(tuple(turns)).decode()):
            return tuple(turns)
        (text,) = await self._broker.get(place)
        return tuple(turns) if text is None else _TURNS.validate_json(text)

    async def keep_image(self, session_id: str, image: ImageRef, data: bytes) -> None:
        """Keep an image of a session, once."""
        await self._broker.put(_image(session_id, image), b64encode(data).decode())

    async def image(self, session_id: str, image: ImageRef) -> bytes | None:
        """An image of a session; None if it does not lie here."""
        (text,) = await self._broker.get(_image(session_id, image))
        return None if text is None else b64decode(text)

    async def forget_images(self, images: Sequence[tuple[str, ImageRef]]) -> None:
        """Delete images, each with its session; they are kept elsewhere."""
        if images:
            await self._broker.delete(*(_image(*each) for each in images))

    async def read(self, session_id: str, answers: Iterable[int]) -> Turns:
        """The turns of these answers, as far as they are there."""
        places = [_place(session_id, number) for number in answers]
        texts = await self._broker.get(*places)
        return tuple(turn for text in texts if text for turn in _TURNS.validate_json(text))

    async def all(self, session_id: str) -> Turns:
        """All turns, in the order in which they were asked for."""
        return await self.read(session_id, range(1, await self.reserve(session_id)))

    async def forget(self, session_id: str) -> None:
        """Delete the turns of a session; they are kept elsewhere."""
        asked = range(1, await self.reserve(session_id) + 1)
        await self._broker.delete(*(_place(session_id, number) for number in asked))


def _counter(session_id: str) -> str:
    return key("session-count", session_id)


def _image(session_id: str, image: ImageRef) -> str:
    return key("session-image", f"{session_id}:{image.id}")


def _place(session_id: str, answer: int) -> str:
    return key("session-turns", f"{session_id}:{answer}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
