"""Bytes that leave each process when a version is broadcast: a group an engine, one group, and one group with two ranks that send.

Ranks of a learner and receivers are processes of their own, which meet over gloo as learner and engines do; what stands in for an
engine joins and receives as the local engine does, and loads nothing. Bytes are those that a process wrote (`wchar` of
/proc/PID/io), in copies of the model. Every receiver must have every byte, which is compared by SHA-256.

Run: python -m bench.broadcast [--mib 64] [--engines 4]
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from bench.machine import machine
from services.local_engine.updates import BroadcastUpdate, JoinGroup, UpdateGroup
from services.policy.weights.adapters import Version
from services.policy.weights.broadcast import Broadcasts
from services.trainer.learner.parallel.broadcast import Broadcaster, open_api
from triforge.store.tensor_files import weight_files
from triforge.types import BroadcastOffer

RANKS = 2
_FILES, _TENSORS = 2, 16


def written() -> int:
    """Bytes that this process has written so far, to sockets as well."""
    found = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(found["wchar"])


def folder_of(parent: Path, mib: float) -> tuple[Path, str]:
    """A version in two files, and its digest as receivers compute it."""
    (folder := parent / "v000001").mkdir()
    whole = {}
    for file in range(_FILES):
        size = int(mib * 2**20 / 4 / _FILES / _TENSORS)
        tensors = {f"t.{file}.{n:02d}": torch.rand(size) for n in range(_TENSORS)}
        save_file(tensors, folder / f"model-{file}.safetensors")
        whole |= tensors
    return folder, digest(whole)


def digest(tensors: dict[str, torch.Tensor]) -> str:
    """SHA-256 of all tensors in the order of their names."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        found.update(tensors[name].numpy().tobytes())
    return found.hexdigest()


def send(root: Path, bucket_bytes: int) -> None:
    """A rank of a learner: says its address, and at every line what it has written."""
    broadcaster = Broadcaster(
        root, host="127.0.0.1", device=torch.device("cpu"), backend="gloo", timeout_s=20, bucket_bytes=bucket_bytes
    )  # fmt: skip
    with open_api(broadcaster, host="127.0.0.1", listen="127.0.0.1") as address:
        say(address)
        for _ in sys.stdin:
            say(written())


def receive() -> None:
    """An engine's process: at every line takes part in the broadcast that it names."""
    say("ready")
    for line in sys.stdin:
        before, place = written(), json.loads(line)
        offers = [BroadcastOffer.model_validate(offer) for offer in place["offers"]]
        groups = {}
        for offer in offers:
            groups[offer.group] = UpdateGroup(JoinGroup(
                backend="gloo", world_size=offer.world_size, rank_offset=place["rank"], master_address=offer.address,
                master_port=offer.port, group_name=offer.group,
            ))  # fmt: skip
        found: dict[str, torch.Tensor] = {}
        for turn in zip_longest(*([(o.group, b) for b in o.buckets] for o in offers)):
            for group, bucket in filter(None, turn):
                about = bucket.model_dump(mode="json") | {"load_format": "flattened_bucket"}
                found |= BroadcastUpdate(group_name=group, **about).read(groups)
        say([digest(found), written() - before])


def say(what: Any) -> None:
    """One line of JSON for the process that measures."""
    print(json.dumps(what), flush=True)


class Child:
    """A process that answers lines; where an engine is wanted, one of one receiver."""

    def __init__(self, process: asyncio.subprocess.Process, number: int) -> None:
        self.process, self.url = process, f"process {number}"

    async def ask(self, line: Any = None) -> Any:
        """Its next line, after one was sent to it."""
        assert self.process.stdin
        assert self.process.stdout
        if line is not None:
            self.process.stdin.write(json.dumps(line).encode() + b"\n")
        return json.loads(await self.process.stdout.readline())

    async def receivers(self) -> int:
        """As an `Engine` has it."""
        return 1


@asynccontextmanager
async def child(number: int, *arguments: object) -> AsyncIterator[Child]:
    """A process of this module, which ends with the block."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.broadcast", *map(str, arguments), stdin=pipe, stdout=pipe
    )
    try:
        yield Child(process, number)
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


async def case(
    ranks: Sequence[Child], apis: Sequence[str], engines: Sequence[Any], version: Version, together: int, sha: str
) -> dict[str, Any]:  # fmt: skip
    """One broadcast: copies of the model that left each process, and whether every receiver has it."""
    size = sum(path.stat().st_size for path in weight_files(Path(version.uri)))
    before = [await rank.ask(0) for rank in ranks]
    begun = time.perf_counter()
    places = await Broadcasts(together=together).ranks(engines, version, apis)
    assert len(places) == len(engines)
    bodies = [
        {"offers": [o.model_dump(mode="json") for o in places[e.url].offers], "rank": places[e.url].rank}
        for e in engines
    ]  # fmt: skip
    found = await asyncio.gather(*(e.ask(b) for e, b in zip(engines, bodies, strict=True)))
    took = time.perf_counter() - begun
    sent = [await rank.ask(0) - had for rank, had in zip(ranks, before, strict=True)]
    return {
        "copies_out_of_ranks": [round(n / size, 2) for n in sent],
        "copies_out_of_engines": [round(n / size, 2) for _, n in found],
        "whole": [was == sha for was, _ in found], "seconds": round(took, 2),
    }  # fmt: skip


async def measure(mib: float, count: int, bucket_mib: float = 4) -> dict[str, Any]:
    """The cases, in one run of the same processes."""
    with tempfile.TemporaryDirectory() as parent:
        folder, sha = folder_of(Path(parent), mib)
        async with AsyncExitStack() as stack:
            bucket = int(bucket_mib * 2**20)
            ranks = [
                await stack.enter_async_context(child(n, "--send", parent, "--bucket", bucket))
                for n in range(RANKS)
            ]
            engines = [await stack.enter_async_context(child(n, "--receive")) for n in range(count)]
            apis = [await rank.ask() for rank in ranks]
            assert [await engine.ask() for engine in engines] == ["ready"] * count
            version, found = Version(1, str(folder)), {}
            for name, sending, together in (
                ("a group an engine, one rank", 1, 1),
                ("one group, one rank", 1, count),
                (f"one group, {RANKS} ranks", RANKS, count),
            ):
                found[name] = await case(ranks, apis[:sending], engines, version, together, sha)
            return found


def main() -> None:
    """Measure and print, or be one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=float, default=64)
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--send", type=Path)
    parser.add_argument("--bucket", type=int)
    parser.add_argument("--receive", action="store_true")
    given = parser.parse_args()
    if given.send:
        send(given.send, given.bucket)
    elif given.receive:
        receive()
    else:
        found = asyncio.run(measure(given.mib, given.engines))
        print(json.dumps({"machine": machine(), "mib": given.mib} | found, indent=2))


if __name__ == "__main__":
    main()
