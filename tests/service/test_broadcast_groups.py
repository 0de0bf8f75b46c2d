"""Engines that share a broadcast: the others go on when one does not come or dies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.policy.weights.watch import end_tasks
from tests.service.test_ranks_hand_over import Behind, engines, holds
from tests.service.test_weights_travel import ADMIN, learner
from tests.unit.local_engine.models import build_folder
from triforge.types import WeightsUpdate

JOIN, RECEIVE = "/init_weights_update_group", "/update_weights_from_distributed"
LEAVE = "/destroy_weights_update_group"
Trouble = Callable[[Any, str, Any], Any]


class Troubled(Behind):
    """An engine to which something happens at its n-th call of a path, before it is answered."""

    def __init__(self, at: str, nth: int, trouble: Trouble, app: Any) -> None:
        super().__init__(app)
        self._at, self._left, self._trouble = at, nth, trouble

    async def meet(self, path: str, body: bytes) -> Any:
        if path == self._at:
            self._left -= 1
            if self._left == 0:
                await self._trouble(self.app, path, body)
        if self._left <= 0:
            raise httpx.ConnectError("gone")
        return self.app


async def hangs(*_: Any) -> None:
    await asyncio.Event().wait()


async def dies(app: Any, _: str, body: bytes) -> None:
    """Its connections close with its process."""
    key = {"authorization": f"Bearer {ADMIN}"}
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://own", headers=key) as http:
        group = httpx.Response(200, content=body).json()["group_name"]
        await http.post(LEAVE, json={"group_name": group})


@pytest.mark.parametrize(
    ("path", "nth", "trouble"),
    [(JOIN, 1, hangs), (RECEIVE, 1, dies), (RECEIVE, 3, dies), ("", 1, hangs)],
    ids=["never-joins", "dies-at-the-first-bucket", "dies-in-the-middle", "no-trouble"],
)
@pytest.mark.timeout(120)
async def test_engines_of_a_group_get_the_new_version_whatever_becomes_of_one(
    tmp_path: Path, path: str, nth: int, trouble: Trouble
) -> None:
    old, new = (build_folder(tmp_path / "w" / f"v{n}", seed=n) for n in range(2))
    whole, last = not path, partial(Troubled, path, nth, trouble)
    with (
        learner(tmp_path, timeout_s=20.0 if whole else 3.0) as (api,),
        engines(old, Behind, Behind, last, version="0") as (three, service),
    ):
        await service.weights.look()
        update = WeightsUpdate(version=1, uri=str(new), handover=(api, api))
        async with asyncio.timeout(50.0):  # a receiver's own patience is 60 s and more
            state = await service.weights.update(update)
        assert (state.version, state.ready) == (1, 3 if whole else 2)
        missed = int(service.pool.metrics.broadcasts_missed._value.get())
        assert missed == 0 if whole else missed >= 2
        assert all([await holds(engine, new) for engine in three[: state.ready]])
        await end_tasks(service.weights._tasks)
        await service.pool.close()
