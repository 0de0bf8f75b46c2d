"""New weights under 64 clients: how long requests are held, how long until a version is live, and what failed.

The engine is this tree's, behind a policy service, each a process. `disk` and `broadcast` are the ways of the product; one card
has room for one rank of NCCL, so a broadcast goes over gloo.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import statistics
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.gpu.device import DEVICE, free, timed
from bench.gpu.models import SHAPES, Shape, llama_folder
from bench.reload import Load, counter, deployment, logprob, publish
from services.trainer.learner.parallel.broadcast import Broadcaster, open_api
from triforge.clients.policy import PolicyClient

_SAME = 0.2  # nats between two readings of one token under one version: half precision, with other requests

_MISSED = "triforge_policy_broadcasts_missed_total"  # an engine read the folder in their place


def _folders(root: Path, shape: Shape, *, distinct: bool) -> list[Path]:
    """Two folders; the second one, if need not be distinct, has the first one's files."""
    first = llama_folder(root / "a", shape)
    if distinct:
        return [first, llama_folder(root / "b", shape, scale=0.5)]
    shutil.copytree(first, root / "b", copy_function=os.link)
    return [first, root / "b"]


def _update(
    name: str, way: str, updates: int, clients: int, distinct: bool, root: Path
) -> dict[str, Any]:
    """Versions published one after the other while clients sample."""
    took: dict[str, float] = {}
    with timed(took, "folders_s"):
        folders = _folders(root, SHAPES[name], distinct=distinct)
    free()  # the engine is another process
    found = asyncio.run(_measure(folders, way, updates, clients))
    wrong = found["failed"] + found["wrong_versions"] + found["broadcasts_missed"]
    assert wrong + distinct * found["wrong_weights"] == 0, found
    assert not distinct or found["versions_apart"] > 2 * _SAME, found
    return found | took


async def _measure(folders: list[Path], way: str, updates: int, clients: int) -> dict[str, Any]:
    given = {
        "TRIFORGE_HANDOVER": "disk" if way == "disk" else "distributed", "TRIFORGE_HANDOVER_TIMEOUT_S": "300",
    }  # fmt: skip
    async with contextlib.AsyncExitStack() as stack:
        enter, handover, root = stack.enter_async_context, None, folders[0].parent
        if way == "broadcast":
            cpu = torch.device("cpu")
            sender = Broadcaster(root, host="127.0.0.1", device=cpu, backend="gloo", timeout_s=300)
            api = open_api(sender, host="127.0.0.1", listen="127.0.0.1")
            handover = (stack.enter_context(api),)
        options = ("--device", DEVICE.type, "--threads", "4")
        _, service = await enter(deployment(folders[0], *options, ready_s=300, **given))
        client, admin = await enter(PolicyClient(service)), await enter(PolicyClient(service))
        load, expected = Load(client), {}
        for version in (1, 2):
            await publish(admin, load, version, folders[version % 2], handover)
            expected[version % 2] = await logprob(admin)
        apart = abs(expected[0] - expected[1])
        tasks = [asyncio.create_task(load.sample(number)) for number in range(clients)]
        took, wrong, held = [], 0, await counter(service)
        for version in range(3, 3 + updates):
            seen = load.requests
            while load.requests < seen + clients // 2:  # noqa: ASYNC110 - some work between two updates
                await asyncio.sleep(0.02)
            took.append(await publish(admin, load, version, folders[version % 2], handover))
            wrong += abs(await logprob(admin) - expected[version % 2]) > _SAME
        held = await counter(service) - held
        missed = await counter(service, _MISSED)
        load.end()
        await asyncio.gather(*tasks)
    return {
        "publish_to_live_s": statistics.median(took), "worst_s": max(took), "paused_s_an_update": held / updates,
        "updates": updates, "clients": clients, "requests": load.requests, "failed": load.failed,
        "wrong_versions": load.wrong, "wrong_weights": wrong, "broadcasts_missed": missed, "versions_apart": apart,
    }  # fmt: skip


def _cases(*plan: tuple[str, int, int, bool]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, updates, clients, distinct in plan:
        for way in ("disk", "broadcast"):
            found[f"{name}-{way}"] = partial(_update, name, way, updates, clients, distinct)
    return found


CASES = _cases(("0.6B", 4, 64, True), ("4B", 2, 64, False), ("8B", 2, 64, False))
REHEARSAL = _cases(("tiny", 2, 6, True), ("tinier", 1, 6, False))
