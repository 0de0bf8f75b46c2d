"""The two paths on which new weights come into an engine, as a trainer walks them; and engines that step on command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import torch
from safetensors.torch import load_file
from torch.distributed import BroadcastOptions, PrefixStore, ProcessGroupGloo, TCPStore

from services.local_engine.engine import Engine
from triforge.supervisor.ports import free_port

LIMIT = timedelta(seconds=60)


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


async def ask(client: httpx.AsyncClient, path: str, body: Any = None, status: int = 200) -> Any:
    reply = await client.post(path, json={} if body is None else body)
    assert reply.status_code == status, (path, reply.status_code, reply.text)
    return reply.json()


class Trainer:
    """Rank 0 of an update group, in this process: it holds no global state, as the engine's side does not."""

    def __init__(self, client: httpx.AsyncClient, name: str) -> None:
        self.client, self.name, self.port = client, name, free_port()
        self.store = TCPStore("127.0.0.1", self.port, 2, True, LIMIT, wait_for_workers=False)
        self.group: Any = None

    async def meet(self) -> None:
        body = {
            "master_address": "127.0.0.1", "master_port": self.port, "rank_offset": 1, "world_size": 2,
            "group_name": self.name, "backend": "gloo",
        }  # fmt: skip
        inner = PrefixStore(
            "cpu/", PrefixStore(f"{self.name}/", PrefixStore(self.name, self.store))
        )
        self.group, _ = await asyncio.gather(
            asyncio.to_thread(ProcessGroupGloo, inner, 0, 2, LIMIT),
            ask(self.client, "/init_weights_update_group", body),
        )

    async def send(
        self, tensors: dict[str, torch.Tensor], *, whole: bool = True, **more: Any
    ) -> Any:
        body = {
            "names": list(tensors),
            "dtypes": [str(t.dtype).removeprefix("torch.") for t in tensors.values()],
            "shapes": [list(t.shape) for t in tensors.values()],
            "group_name": self.name,
            **more,
        }
        parts = list(tensors.values())
        if whole:
            body["load_format"] = "flattened_bucket"
            parts = [torch.cat([t.contiguous().flatten().view(torch.uint8) for t in parts])]
        status = more.pop("status", 200)
        body.pop("status", None)
        _, found = await asyncio.gather(
            asyncio.to_thread(self._broadcast, parts),
            ask(self.client, "/update_weights_from_distributed", body, status),
        )
        return found

    def _broadcast(self, parts: list[torch.Tensor]) -> None:
        for part in parts:
            self.group.broadcast([part.contiguous()], BroadcastOptions()).wait()


@asynccontextmanager
async def trainer_of(client: httpx.AsyncClient, name: str) -> AsyncIterator[Trainer]:
    found = Trainer(client, name)
    await found.meet()
    yield found
    await ask(client, "/destroy_weights_update_group", {"group_name": name})


async def by_disk(trainer: Trainer, folder: Path, **more: Any) -> None:
    body = {"model_path": str(folder), **more}
    assert (await ask(trainer.client, "/update_weights_from_disk", body))["success"] is True


async def by_broadcast(trainer: Trainer, folder: Path, **more: Any) -> None:
    await ask(trainer.client, "/begin_weight_update")
    await trainer.send(weights_of(folder), whole=int(more["weight_version"]) % 2 == 0, **more)
    await ask(trainer.client, "/end_weight_update")


UPDATE_PATHS = {"disk": by_disk, "distributed": by_broadcast}


async def advance(engine: Engine, steps: int) -> None:
    """Let a paused engine take that many steps and no more. No request may end in them."""
    scheduler = engine.scheduler

    def go() -> None:
        scheduler.resume()
        for _ in range(steps):
            assert scheduler.step() == []
        scheduler.pause("in_place")

    await engine.call(go)
