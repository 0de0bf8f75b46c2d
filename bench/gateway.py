"""Cost of the policy service: one client against an engine without latency, directly and through the service.

Three ways to ask, each directly and through the service, at 64 requests in flight:

    one by one   every request is an HTTP request of its own; the client sends the next when it has the answer
    together     requests made at the same moment travel in one HTTP request, up to 16, as the shipped client does
    paced        one by one, but each of the 64 clients asks at a steady rate, together far below what either way can
                 bear; what is added here is the service's work and not the queue for a busy core

Then whole episodes of several turns through the shipped client, all at once; every one must end without an error.

Run: python -m bench.gateway [--soak]
"""

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import uvloop

from bench.machine import Row, cpu_s, keep, machine, process, show_rows
from triforge.clients.policy import PolicyClient
from triforge.clients.transport import get_json, http_client, post_json
from triforge.config import EnvAdapterSection
from triforge.rollout.episode import play_episode
from triforge.supervisor.ports import free_port
from triforge.testing import FakeEnvironment
from triforge.testing.model_folders import chatml_folder
from triforge.types import GroupTask, Sampling, Task

CLIENTS = 64
TOGETHER = 16
PACED_SHARE = 0.25  # of what the service can bear one by one
ADDED_MS, SHARE = 3.0, 0.4  # goals
PREFIX = [5 + i % 200 for i in range(48)]
OBSERVATION = "You see a cup and a table. Take the cup."
TURNS = 6
SAMPLING = {"max_new_tokens": 32, "temperature": 1.0}
Ask = Callable[[int], Awaitable[None]]


@contextlib.contextmanager
def deployment(folder: Path) -> Iterator[tuple[str, str, int]]:
    """Yield the addresses of an engine without latency and of a policy service in front of it, and the service's process id."""
    engine, service = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    with (
        process("-m", "bench.zero_engine", engine.rpartition(":")[2], str(folder)),
        process(
            "-m", "services.policy", TRIFORGE_ENGINES=engine, TRIFORGE_POLICY_MODEL_URL=service, TRIFORGE_MODEL=str(folder),
        ) as serving,
    ):  # fmt: skip
        yield engine, service, serving.pid


def directly(client: httpx.AsyncClient, ids: list[int]) -> Ask:
    params = {**SAMPLING, "stop_token_ids": [2]}

    async def ask(count: int) -> None:
        body = {"input_ids": [ids] * count, "sampling_params": [params] * count, "return_logprob": True}  # fmt: skip
        found = await post_json(client, "/generate", body)
        assert len(found) == count
        assert all(len(item["output_ids"]) == 16 for item in found)

    return ask


def through_the_service(client: httpx.AsyncClient) -> Ask:
    message = {"role": "user", "content": OBSERVATION}
    request = {"prefix_ids": PREFIX, "messages": [message], "sampling": SAMPLING, "affinity": "g"}

    async def ask(count: int) -> None:
        found = await post_json(client, "/v1/generate", {"requests": [request] * count})
        assert len(found["replies"]) == count
        assert all(len(reply["outputs"][0]["ids"]) == 16 for reply in found["replies"])

    return ask


async def closed_loop(ask: Ask, together: int, seconds: float, pid: int) -> dict[str, float]:
    """64 requests in flight at all times: requests a second, latencies, and processor time of process `pid`."""
    took: list[float] = []
    end = time.perf_counter() + seconds

    async def client() -> None:
        while (start := time.perf_counter()) < end:
            await ask(together)
            took.append(time.perf_counter() - start)

    start, used = time.perf_counter(), cpu_s(pid)
    await asyncio.gather(*(client() for _ in range(CLIENTS // together)))
    asked = together * len(took)
    return {
        "rate": asked / (time.perf_counter() - start),
        "service_cpu_ms": (cpu_s(pid) - used) / asked * 1e3,
        **_latencies(took),
    }


async def paced(ask: Ask, rate: float, seconds: float, pid: int) -> dict[str, float]:
    """64 clients that ask at a steady rate, `rate` requests a second together."""
    took: list[float] = []
    clock = time.perf_counter  # the loop's own clock counts in milliseconds
    begin, gap = clock() + 0.1, CLIENTS / rate

    async def client(number: int) -> None:
        phase = random.Random(number).random() * gap
        for turn in range(max(6, int(seconds / gap))):
            await asyncio.sleep(begin + phase + turn * gap - clock())
            start = clock()
            await ask(1)
            took.append(clock() - start)

    used = cpu_s(pid)
    await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    return {
        "rate": rate,
        "service_cpu_ms": (cpu_s(pid) - used) / len(took) * 1e3,
        **_latencies(took),
    }


def _latencies(took: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(took, n=100)
    return {"p50_ms": cuts[49] * 1e3, "p99_ms": cuts[98] * 1e3}


async def compare(engine: str, service: str, pid: int, seconds: float) -> dict[str, Any]:
    """Both ways in turn, twice each, so that a busy moment of the machine does not meet only one of them."""
    async with http_client(engine) as near, http_client(service) as far:
        await get_json(far, "/readyz", deadline_s=60)
        ask = {
            "directly": directly(near, [*PREFIX, *range(5, 21)]),
            "service": through_the_service(far),
        }
        found: dict[str, Any] = {}
        for name, together in (("one by one", 1), ("together", TOGETHER)):
            found[name] = await _alternately(
                ask, lambda a, t=together: closed_loop(a, t, seconds / 2, pid)
            )
        rate = PACED_SHARE * found["one by one"]["service"]["rate"]
        found["paced"] = await _alternately(ask, lambda a: paced(a, rate, seconds / 2, pid))
        return found


async def _alternately(
    ask: dict[str, Ask], run: Callable[[Ask], Awaitable[dict[str, float]]]
) -> dict[str, dict[str, float]]:
    rounds = [{way: await run(a) for way, a in ask.items()} for _ in range(2)]
    return {
        way: {key: statistics.fmean(r[way][key] for r in rounds) for key in rounds[0][way]}
        for way in ask
    }


def counting_task() -> Task:
    given = json.loads(Path("tests/contract/types/Task.json").read_text())
    return Task.model_validate(
        given | {"params": {"target": TURNS - 5}, "instruction": "Count.", "id": "task"}
    )


async def rollouts(service: str, count: int) -> dict[str, float]:
    """Play `count` episodes of several turns at the same time."""
    task = counting_task()
    group = GroupTask(
        group_id="g", run_id="r", step=0, task_id="task", purpose="train", rollouts=1, seed=1,
        sampling=Sampling(max_new_tokens=32),
        env_adapter=EnvAdapterSection(max_steps=TURNS, episode_deadline_s=600.0, episode_retries=0),
    )  # fmt: skip
    async with PolicyClient(service) as client:
        start = time.perf_counter()
        played = await asyncio.gather(
            *(
                play_episode(
                    FakeEnvironment, client, task, group.model_copy(update={"group_id": f"g{i // 8}"}), i,
                )
                for i in range(count)
            )
        )  # fmt: skip
        seconds = time.perf_counter() - start
    errors = [t.outcome.error for t in played if not t.measured]
    if errors:
        print(f"first error: {errors[0]}", file=sys.stderr)
    turns = sum(len(t.steps) for t in played)
    return {"rollouts": count, "turns": turns, "errors": len(errors), "seconds": seconds}


def rows(found: dict[str, Any]) -> Iterator[Row]:
    for name, way in found["ways"].items():
        near, far = way["directly"], way["service"]
        share, added = far["rate"] / near["rate"], far["p50_ms"] - near["p50_ms"]
        if name == "paced":
            yield Row("64 clients, paced: added p50", f"{added:.1f} ms", f"{ADDED_MS:g} ms", added <= ADDED_MS)  # fmt: skip
        else:
            goal = (f"{SHARE:.0%}", share >= SHARE) if name == "one by one" else ("", None)
            yield Row(f"64 requests in flight, {name}: share of the direct throughput", f"{share:.0%}", *goal)  # fmt: skip
            yield Row("added p50 (queues for the cores), CPU of the service a request", f"{added:.1f} ms, {far['service_cpu_ms']:.2f} ms")  # fmt: skip
    for row in found["rollouts"]:
        what = f"errors of {row['rollouts']} rollouts at once, {row['turns']} turns, {row['seconds']:.0f} s"
        yield Row(what, str(row["errors"]), "0", row["errors"] == 0)


async def measure(
    engine: str, service: str, pid: int, options: argparse.Namespace
) -> dict[str, Any]:
    ways = {} if options.soak else await compare(engine, service, pid, options.seconds)
    counts = [4096] if options.soak else [512]
    async with http_client(service) as client:
        await get_json(client, "/readyz", deadline_s=60)
    played = [await rollouts(service, count) for count in counts]
    return {"machine": machine(), "ways": ways, "rollouts": played}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--soak", action="store_true", help="4,096 rollouts at once, nothing else")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each way to ask")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = chatml_folder(Path(folder, "model"))
        with deployment(model) as (engine, service, pid):
            found = uvloop.run(measure(engine, service, pid, options))
    print(f"machine: {found['machine']}")
    show_rows("policy service in front of an engine without latency", rows(found))
    keep("gateway", found)
    return 1 if any(row["errors"] for row in found["rollouts"]) else 0


if __name__ == "__main__":
    sys.exit(main())
