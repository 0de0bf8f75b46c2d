"""Engines that share a broadcast: the others go on when one does not come or dies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from services.local_engine.app import create_app
from services.local_engine.engine import Engine
from services.policy.engines.sglang import SGLangEngine
from services.policy.weights.watch import end_tasks
from services.trainer.learner.parallel.broadcast import Broadcaster, open_api
from tests.service.test_ranks_hand_over import holds
from tests.service.test_weights_travel import ADMIN, Service
from tests.unit.local_engine.models import build_folder, new_engine
from triforge.types import WeightsUpdate

JOIN, RECEIVE = "/init_weights_update_group", "/update_weights_from_distributed"
LEAVE = "/destroy_weights_update_group"
Trouble = Callable[[Any, str, Any], Any]


class Troubled:
    """An engine to which something happens at its n-th call of a path, before it is answered."""

    def __init__(self, app: Any, path: str, nth: int, trouble: Trouble) -> None:
        self._app, self._path, self._left, self._trouble = app, path, nth, trouble

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        first = await receive()
        if scope["path"] == self._path:
            self._left -= 1
            if self._left == 0:
                await self._trouble(self._app, self._path, first["body"])
        if self._left <= 0:
            raise httpx.ConnectError("gone")
        messages = iter([first])

        async def again() -> Any:
            return next(messages, None) or await receive()

        await self._app(scope, again, send)


async def hangs(*_: Any) -> None:
    await asyncio.Event().wait()


async def dies(app: Any, _: str, body: bytes) -> None:
    """Its connections close with its process."""
    key = {"authorization": f"Bearer {ADMIN}"}
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://own", headers=key) as http:
        group = httpx.Response(200, content=body).json()["group_name"]
        await http.post(LEAVE, json={"group_name": group})


@contextmanager
def three_engines(
    folder: Path, path: str, nth: int, trouble: Trouble
) -> Iterator[tuple[list[Engine], Service]]:
    """A policy service before three engines, of which the last one has trouble."""
    made = [new_engine(folder, version="0") for _ in range(3)]
    clients = []
    for number, engine in enumerate(made):
        engine.start()
        app: Any = create_app(engine=engine, served_name="tiny", admin_api_key=ADMIN)
        app = Troubled(app, path, nth, trouble) if number == 2 else app
        transport = httpx.ASGITransport(app)
        clients.append(SGLangEngine(f"http://e{number}", admin_api_key=ADMIN, transport=transport))
    try:
        yield made, Service(clients, folder, "distributed")
    finally:
        for engine in made:
            engine.stop()


@pytest.mark.parametrize(
    ("path", "nth", "trouble"),
    [(JOIN, 1, hangs), (RECEIVE, 1, dies), (RECEIVE, 3, dies), ("", 1, hangs)],
    ids=["never-joins", "dies-at-the-first-bucket", "dies-in-the-middle", "no-trouble"],
)
@pytest.mark.timeout(120)
async def test_the_others_of_a_group_get_the_new_version_from_the_folder(
    tmp_path: Path, path: str, nth: int, trouble: Trouble
) -> None:
    old, new = (build_folder(tmp_path / "w" / f"v{n}", seed=n) for n in range(2))
    whole = not path
    broadcaster = Broadcaster(
        tmp_path, host="127.0.0.1", device=torch.device("cpu"), backend="gloo",
        timeout_s=20.0 if whole else 3.0, bucket_bytes=4000,
    )  # fmt: skip
    with (
        open_api(broadcaster, host="127.0.0.1", listen="127.0.0.1", admin_api_key=ADMIN) as api,
        three_engines(old, path, nth, trouble) as (engines, service),
    ):
        await service.weights.look()
        update = WeightsUpdate(version=1, uri=str(new), handover=(api, api))
        async with asyncio.timeout(50.0):  # a receiver's own patience is 60 s and more
            state = await service.weights.update(update)
        assert (state.version, state.ready) == (1, 3 if whole else 2)
        missed = int(service.pool.metrics.broadcasts_missed._value.get())
        assert missed == 0 if whole else missed >= 2
        assert all([await holds(engine, new) for engine in engines[: state.ready]])
        await end_tasks(service.weights._tasks)
        await service.pool.close()
