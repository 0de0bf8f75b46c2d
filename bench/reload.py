"""Weights that change under load: SmolLM2-135M on the local engine, behind a policy service.

Two folders of the model, one of them with its last norm scaled, are published in turn while 32 clients sample. Every
answer must come, and every token must be of a version that was live when it was sampled: not older than when the request
was sent, not newer than when the answer was there. After each update a greedy token's log-probability must be that of the
new folder. What an update takes is compared with the engine's reading, checking and copying of the same file in a process
where nothing else runs, and with an update of the same deployment when it is idle. The service's own look at the folder is
timed as well, as far as `TRIFORGE_WEIGHTS_CHECK` says.

Run: python -m bench.reload [--updates 20] [--clients 32]
"""

import argparse
import asyncio
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from bench.machine import Row, keep, machine, process, show_rows
from demo.models.smollm2 import smollm2_folder
from services.local_engine.model import load_model, stage_weights
from services.policy.weights.folder import check_folder, read_weights
from triforge.clients.policy import PolicyClient
from triforge.clients.transport import get_json, http_client, request
from triforge.config import Settings
from triforge.store.manifests import load_manifest, write_manifest
from triforge.store.weight_folders import atomic_folder
from triforge.supervisor.ports import free_port
from triforge.types import ChatMessage, GenerateReply, GenerateRequest, Sampling, WeightsUpdate

NEW_TOKENS = 8
PUBLISH = 2.0  # goal: publish to live, over reading and loading the file alone
PAUSED = "triforge_policy_engine_paused_seconds_total"
PROBE = GenerateRequest(
    messages=(ChatMessage(role="user", content="What is the capital of France?"),),
    sampling=Sampling(max_new_tokens=1, temperature=0.0),
)


def published(source: Path, folder: Path, scale: float) -> Path:
    """Write the same model with its last norm scaled: another distribution, the same shapes."""
    with atomic_folder(folder) as aside:
        shutil.copytree(source, aside, dirs_exist_ok=True)
        weights = load_file(source / "model.safetensors")
        weights["model.norm.weight"] *= scale
        save_file(weights, aside / "model.safetensors", metadata={"format": "pt"})
        write_manifest(aside, {})
    return folder


def alone(folder: Path, times: int = 15) -> dict[str, float]:
    """Medians of seconds with nothing else running.

    The engine's reading, checking and copying of the weight file; a bare read and copy without any check; and the service's
    check of the folder before any engine sees it.
    """
    depth, digest = Settings.from_env().weights_check, load_manifest(folder).digest
    serving = read_weights(folder)
    model, config = load_model(folder)
    bare = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, trust_remote_code=False
    )
    path = folder / "model.safetensors"
    ways = {
        "alone_s": lambda: model.apply(stage_weights(folder, model, config)),
        "bare_copy_s": lambda: bare.load_state_dict(load_file(path), strict=False),
        "check_s": lambda: check_folder(folder, digest=digest, depth=depth, serving=serving),
    }
    return {
        name: statistics.median(_timed(way) for _ in range(times)) for name, way in ways.items()
    }


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


class Load:
    """Clients that sample all the time, and what they found."""

    def __init__(self, client: PolicyClient) -> None:
        self._client = client
        self.live = 0
        self.announced = 0
        self.requests = self.failed = self.wrong = self.across = 0
        self._over = asyncio.Event()

    async def sample(self, number: int) -> None:
        turn = 0
        while not self._over.is_set():
            turn += 1
            words = ChatMessage(
                role="user", content=f"Tell me about the number {number * 97 + turn}."
            )
            sampling = Sampling(max_new_tokens=NEW_TOKENS)
            oldest = self.live
            try:
                reply = await self._client(GenerateRequest(messages=(words,), sampling=sampling))
            except Exception as error:  # noqa: BLE001 - counted and shown
                print(f"failed: {error}", file=sys.stderr)
                self.failed += 1
                continue
            self._check(reply, oldest)

    def _check(self, reply: GenerateReply, oldest: int) -> None:
        (output,) = reply.outputs
        self.requests += 1
        versions = [span.version for span in output.versions]
        tokens = sum(span.end - span.start for span in output.versions)
        ordered = versions == sorted(versions) and tokens == len(output.ids)
        inside = all(oldest <= version <= self.announced for version in versions)
        self.wrong += not (ordered and inside and output.finish != "abort")
        self.across += len(set(versions)) > 1

    def end(self) -> None:
        self._over.set()


async def counter(service: str, name: str = PAUSED) -> float:
    """Return the sum of a counter of the service, over its labels."""
    async with http_client(service) as client:
        text = (await request(client, "GET", "/metrics")).text
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


async def publish(
    client: PolicyClient,
    load: Load,
    version: int,
    folder: Path,
    handover: tuple[str, ...] | None = None,
) -> float:
    """Seconds from the call until the version is live and proven."""
    digest = load_manifest(folder).digest
    load.announced = version
    start = time.perf_counter()
    state = await client.update_weights(
        WeightsUpdate(version=version, uri=str(folder), digest=digest, handover=handover)
    )
    took = time.perf_counter() - start
    assert state.version == version
    load.live = version
    return took


async def logprob(client: PolicyClient) -> float:
    (output,) = (await client(PROBE)).outputs
    return output.logprobs[0]


@asynccontextmanager
async def deployment(
    folder: Path, *options: str, ready_s: float = 120, **variables: str
) -> AsyncIterator[tuple[str, str]]:
    """Yield the addresses of an engine, started with more `options`, and of a service in front of it."""
    engine, service = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    port = engine.rpartition(":")[2]
    with (
        process(
            "-m", "services.local_engine", "--model-path", str(folder), "--port", port, "--weight-version", "0",
            "--log-level", "warning", *options,
        ),
        process(
            "-m", "services.policy", TRIFORGE_ENGINES=engine, TRIFORGE_POLICY_MODEL_URL=service, TRIFORGE_MODEL=str(folder),
            **variables,
        ),
    ):  # fmt: skip
        async with http_client(service) as client:
            await get_json(client, "/readyz", deadline_s=ready_s)
        yield engine, service


async def measure(folders: list[Path], updates: int, clients: int) -> dict[str, Any]:
    async with (
        deployment(folders[0]) as (_, service),
        PolicyClient(service, batch=1) as client,
        PolicyClient(service) as admin,
    ):
        load = Load(client)
        idle, expected = [], {}
        for version in (1, 2, 3, 4):  # also what each folder says
            idle.append(await publish(admin, load, version, folders[version % 2]))
            expected[version % 2] = await logprob(admin)
        assert abs(expected[0] - expected[1]) > 1e-3, "the two folders say the same"
        tasks = [asyncio.create_task(load.sample(number)) for number in range(clients)]
        busy, mistaken = [], 0
        start, held = time.perf_counter(), await counter(service)
        for version in range(5, 5 + updates):
            seen = load.requests
            while load.requests < seen + clients // 2:  # noqa: ASYNC110 - some work between two updates
                await asyncio.sleep(0.05)
            busy.append(await publish(admin, load, version, folders[version % 2]))
            mistaken += abs(await logprob(admin) - expected[version % 2]) > 1e-3
        seconds = time.perf_counter() - start
        held = await counter(service) - held
        load.end()
        await asyncio.gather(*tasks)
    return {
        "updates": updates, "clients": clients, "requests": load.requests, "failed": load.failed,
        "wrong_versions": load.wrong, "answers_across_an_update": load.across, "wrong_weights": mistaken,
        "publish_to_live_s": statistics.median(busy), "publish_to_live_worst_s": max(busy),
        "idle_publish_to_live_s": statistics.median(idle[1:]), "seconds": seconds, "paused_share": held / seconds,
    }  # fmt: skip


def rows(found: dict[str, Any]) -> Iterator[Row]:
    load = (
        f"{found['updates']} updates under {found['clients']} clients, {found['requests']} requests"
    )
    yield Row(f"{load}: failed", str(found["failed"]), "0", found["failed"] == 0)
    wrong = found["wrong_versions"] + found["wrong_weights"]
    yield Row("tokens of a wrong version, answers of wrong weights", str(wrong), "0", wrong == 0)
    ratio = found["ratio"]
    yield Row("publish to live over reading and loading the file alone", f"{ratio:.2f}", f"{PUBLISH:g}", ratio <= PUBLISH)  # fmt: skip
    names = (
        "publish_to_live_s",
        "publish_to_live_worst_s",
        "idle_publish_to_live_s",
        "alone_s",
        "bare_copy_s",
        "check_s",
    )
    yield from (Row(name.replace("_", " "), f"{found[name]:.3f}") for name in names)
    yield Row("share of the time for which requests were held", f"{found['paused_share']:.1%}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--clients", type=int, default=32)
    options = parser.parse_args()
    torch.set_num_threads(1)
    source = smollm2_folder()
    with tempfile.TemporaryDirectory() as scratch:
        folders = [published(source, Path(scratch, str(scale)), scale) for scale in (1.0, 0.9)]
        reading = alone(folders[0])
        found = asyncio.run(measure(folders, options.updates, options.clients))
    found |= {"machine": machine(), **reading}
    found["ratio"] = found["publish_to_live_s"] / found["alone_s"]
    print(f"machine: {found['machine']}")
    show_rows("SmolLM2-135M, local engine", rows(found))
    keep("reload", found)
    return 1 if found["failed"] or found["wrong_versions"] or found["wrong_weights"] else 0


if __name__ == "__main__":
    sys.exit(main())
