"""New weights under 64 clients: how long requests are held, how long until a version is live, and what failed.

The engine is this tree's, behind a policy service, each a process. `disk` and `broadcast` are the ways of the product; one card
has room for one rank of NCCL, so a broadcast goes over gloo. `ipc` is what a hand-over within one card would cost at least:
tensors of one process copied by another, no engine, no check; the product has no such way.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from transformers import LlamaConfig

from bench.gpu.models import SHAPES, Shape, device, emptied, llama_folder, synchronize
from bench.gpu.supervise import SkipCase
from bench.reload import Load, deployment, logprob, paused_seconds, publish
from services.local_engine.llama import LlamaModel, LlamaShape
from services.trainer.broadcast import Broadcaster, open_api
from triforge.clients.policy import PolicyClient
from triforge.clients.transport import http_client, request

_SAME = 0.2  # nats between two readings of one token under one version: half precision, other requests beside it


def _folders(root: Path, shape: Shape, *, distinct: bool) -> list[Path]:
    """Two folders; the second one, if need not be distinct, has the first one's files."""
    first = llama_folder(root / "a", shape)
    if distinct:
        return [first, llama_folder(root / "b", shape, scale=0.5)]
    shutil.copytree(first, root / "b", copy_function=os.link)
    return [first, root / "b"]


def _demand(root: Path, shape: Shape) -> None:
    config = LlamaShape.from_config(shape.config(LlamaConfig).to_dict())
    assert config is not None
    with torch.device("meta"):
        numbers = sum(t.numel() for t in LlamaModel(config).weights.values())
    free = shutil.disk_usage(root).free
    if free < 5 * numbers:
        raise SkipCase(
            f"{root} has {free / 2**30:.0f} GiB free, expected {5 * numbers / 2**30:.0f}"
        )


def _update(name: str, way: str, updates: int, clients: int, distinct: bool) -> dict[str, Any]:
    """Versions published one after the other while clients sample."""
    with tempfile.TemporaryDirectory() as scratch, emptied():
        root, shape = Path(scratch), SHAPES[name]
        _demand(root, shape)
        started = time.monotonic()
        folders = _folders(root, shape, distinct=distinct)
        made = time.monotonic() - started
        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()  # the engine is another process
        found = asyncio.run(_measure(folders, way, updates, clients))
    wrong = found["failed"] + found["wrong_versions"] + found["broadcasts_missed"]
    assert wrong + distinct * found["wrong_weights"] == 0, found
    assert not distinct or found["versions_apart"] > 2 * _SAME, found
    return found | {"folders_s": made}


async def _measure(folders: list[Path], way: str, updates: int, clients: int) -> dict[str, Any]:
    given = {
        "TRIFORGE_HANDOVER": "disk" if way == "disk" else "distributed",
        "TRIFORGE_HANDOVER_TIMEOUT_S": "300",
    }
    async with contextlib.AsyncExitStack() as stack:
        enter, handover = stack.enter_async_context, None
        if way == "broadcast":
            sender = Broadcaster(
                folders[0].parent,
                host="127.0.0.1",
                device=torch.device("cpu"),
                backend="gloo",
                timeout_s=300,
            )
            handover = await enter(open_api(sender, host="127.0.0.1", listen="127.0.0.1"))
        _, service = await enter(
            deployment(
                folders[0], "--device", device().type, "--threads", "4", ready_s=300, **given
            )
        )
        client, admin = await enter(PolicyClient(service)), await enter(PolicyClient(service))
        load, expected = Load(client), {}
        for version in (1, 2):
            await publish(admin, load, version, folders[version % 2], handover)
            expected[version % 2] = await logprob(admin)
        apart = abs(expected[0] - expected[1])
        tasks = [asyncio.create_task(load.sample(number)) for number in range(clients)]
        took, wrong, held = [], 0, await paused_seconds(service)
        for version in range(3, 3 + updates):
            seen = load.requests
            while load.requests < seen + clients // 2:  # noqa: ASYNC110 - some work between two updates
                await asyncio.sleep(0.02)
            took.append(await publish(admin, load, version, folders[version % 2], handover))
            wrong += abs(await logprob(admin) - expected[version % 2]) > _SAME
        held = await paused_seconds(service) - held
        missed = await _missed(service)
        load.end()
        await asyncio.gather(*tasks)
    return {
        "publish_to_live_s": statistics.median(took), "worst_s": max(took), "paused_s_an_update": held / updates,
        "updates": updates, "clients": clients, "requests": load.requests, "failed": load.failed,
        "wrong_versions": load.wrong, "wrong_weights": wrong, "broadcasts_missed": missed, "versions_apart": apart,
    }  # fmt: skip


async def _missed(service: str) -> int:
    """Broadcasts in whose place an engine read the folder."""
    async with http_client(service) as client:
        text = (await request(client, "GET", "/metrics")).text
    name = "triforge_policy_broadcasts_missed_total"
    return int(sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name)))


def _ipc(name: str) -> dict[str, Any]:
    """Tensors of one process copied by another on one card: the least that a hand-over takes."""
    config = LlamaShape.from_config(SHAPES[name].config(LlamaConfig).to_dict())
    assert config is not None
    with torch.device("meta"):
        shapes, _ = LlamaModel(config).expected()
    context = mp.get_context("spawn")
    there, back = context.Queue(), context.Queue()
    child = context.Process(target=_receive, args=(there, back, shapes), daemon=True)
    child.start()
    try:
        with emptied():
            assert back.get(timeout=120) == "ready"
            took: dict[str, float] = {}
            for turn in ("first_s", "second_s"):
                tensors = {
                    n: torch.full(size, len(took) + 0.5, dtype=torch.bfloat16, device=device())
                    for n, size in shapes.items()
                }
                synchronize()
                started = time.perf_counter()
                there.put(tensors)
                assert back.get(timeout=120) == len(took) + 0.5, "other weights arrived"
                took[turn] = time.perf_counter() - started
            size = sum(t.nbytes for t in tensors.values())
            del tensors
    finally:
        there.put(None)
        child.join(20)
        child.kill()
    return took | {"gib": size / 2**30}


def _receive(there: Any, back: Any, shapes: dict[str, tuple[int, ...]]) -> None:
    own = {
        n: torch.zeros(size, dtype=torch.bfloat16, device=device()) for n, size in shapes.items()
    }
    synchronize()
    back.put("ready")
    while (given := there.get()) is not None:
        for name, tensor in given.items():
            own[name].copy_(tensor)
        synchronize()
        back.put(float(own["model.norm.weight"][-1]))
        del given, tensor  # the sender may free its memory once nobody has it open


def cases(*, rehearse: bool) -> dict[str, Callable[[], dict[str, Any]]]:
    plan = (
        [("tiny", 2, 6, True), ("tinier", 1, 6, False)]
        if rehearse
        else [("0.6B", 4, 64, True), ("4B", 2, 64, False), ("8B", 2, 64, False)]
    )
    found: dict[str, Callable[[], dict[str, Any]]] = {}
    for name, updates, clients, distinct in plan:
        for way in ("disk", "broadcast"):
            found[f"{name}-{way}"] = partial(_update, name, way, updates, clients, distinct)
        found[f"{name}-ipc"] = partial(_ipc, name)
    return found
