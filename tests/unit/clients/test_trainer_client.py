"""The trainer's client over streams that break off."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from triforge.clients.trainer import TrainerClient
from triforge.errors import NotFoundError, StorageError, UnavailableError
from triforge.types import Event


class Broken(httpx.AsyncByteStream):
    """Sends its parts; then the connection breaks, unless it is to end well."""

    def __init__(self, *parts: str, whole: bool = False) -> None:
        self.parts, self.whole = parts, whole

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self.parts:
            yield part.encode()
        if not self.whole:
            raise httpx.RemoteProtocolError("peer closed connection")


def sent(number: int) -> str:
    event = Event(kind="step", run_id="r", step=number, at=0.0)
    return f"id: {number}-0\nevent: step\ndata: {event.model_dump_json()}\n\n"


def client(*answers: httpx.Response, patience_s: float = 5.0) -> tuple[TrainerClient, list[str]]:
    """A client that gets the answers in turn, and the `after` of each of its requests."""
    asked: list[str] = []
    turn: Iterator[httpx.Response] = iter(answers)

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.params.get("after", ""))
        return next(turn)

    made = TrainerClient(
        "http://trainer", patience_s=patience_s, transport=httpx.MockTransport(answer)
    )
    return made, asked


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def test_events_go_on_after_the_last_one_when_the_stream_breaks_off() -> None:
    made, asked = client(
        httpx.Response(200, stream=Broken(sent(1), sent(2), "id: 3-0\n")),
        httpx.Response(503, headers={"Retry-After": "1"}),
        httpx.Response(200, stream=Broken(sent(3), whole=True)),
    )
    found = [(entry, event.step) async for entry, event in made.events("r")]
    assert found == [("1-0", 1), ("2-0", 2), ("3-0", 3)]
    assert asked == ["0", "2-0", "2-0"]


async def test_events_end_with_the_reason_when_nothing_answers_any_more() -> None:
    made, _ = client(*(httpx.Response(200, stream=Broken()) for _ in range(3)), patience_s=0.0)
    with pytest.raises(UnavailableError, match="no answer to GET /v1/runs/r/events"):
        [item async for item in made.events("r")]


async def test_events_of_an_unknown_run_are_an_error_at_once() -> None:
    made, asked = client(
        httpx.Response(404, json={"type": "urn:triforge:not_found", "detail": "no"})
    )
    with pytest.raises(NotFoundError):
        [item async for item in made.events("r")]
    assert len(asked) == 1


async def test_an_export_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    made, _ = client(httpx.Response(200, stream=Broken("PAR1")))
    with pytest.raises(UnavailableError, match="no answer to GET /v1/runs/r/export"):
        await made.export("r", tmp_path / "run.parquet")
    assert names(tmp_path) == []


async def test_export_into_a_missing_folder(tmp_path: Path) -> None:
    made, asked = client()
    with pytest.raises(StorageError, match=r"cannot write .*run\.parquet: No such file"):
        await made.export("r", tmp_path / "missing" / "run.parquet")
    assert asked == []
