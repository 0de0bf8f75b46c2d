r"""Cost of a session: conversations of six turns in sessions and at the plain route of one policy service.

The engine has no latency, env_adapter and Valkey run as `triforge up` starts them. Each way is measured in turn in one run:

    paced        64 agents ask at a steady rate, far below what either way can bear: what is added is work and not a queue
    one by one   64 requests in flight at all times: requests a second
    counted      round trips to Valkey a turn, and processor time of the service: they do not depend on what else runs

Run: python -m bench.sessions [--conversations 320]
"""

import argparse
import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import redis
import uvloop

from bench.gateway import CLIENTS, OBSERVATION, TURNS
from bench.machine import Row, cpu_s, keep, machine, process, show_rows
from triforge.clients.transport import get_json, http_client, post_json
from triforge.store.database import open_database
from triforge.supervisor.layout import server_command
from triforge.supervisor.ports import free_port
from triforge.testing.model_folders import chatml_folder

ADDED_MS = 2.0
PACED_SHARE = 0.25  # of what sessions can bear one by one
AT_ONCE = 64  # sessions that are made at a time
SAYS = "go take"  # what the engine says
SYSTEM = "You are in a kitchen. Answer with one action."
CHAT = "/chat/completions"
Place = tuple[str, dict[str, str]]  # where a conversation is held, and its headers


@dataclass(frozen=True)
class Stack:
    engine: str
    policy: str
    env: str
    valkey: int
    pid: int


@contextlib.contextmanager
def deployment(folder: Path) -> Iterator[Stack]:
    engine, policy, env = (f"http://127.0.0.1:{free_port()}" for _ in range(3))
    valkey, model = free_port(), chatml_folder(folder / "model")
    variables = {
        "TRIFORGE_ENGINES": engine, "TRIFORGE_POLICY_MODEL_URL": policy, "TRIFORGE_ENV_ADAPTER_URL": env,
        "TRIFORGE_MODEL": str(model), "TRIFORGE_REDIS_URL": f"redis://127.0.0.1:{valkey}/0",
        "TRIFORGE_DATABASE_URL": f"sqlite:///{folder / 'triforge.sqlite'}", "TRIFORGE_ARTIFACTS_URL": str(folder / "artifacts"),
    }  # fmt: skip
    open_database(variables["TRIFORGE_DATABASE_URL"]).close()  # its tables
    command = server_command(valkey, folder)
    with contextlib.ExitStack() as running:
        running.enter_context(process(*command[1:], program=command[0], **variables))
        running.enter_context(
            process("-m", "bench.zero_engine", engine.rpartition(":")[2], str(model))
        )
        running.enter_context(process("-m", "services.env_adapter", "api", **variables))
        serving = running.enter_context(process("-m", "services.policy", **variables))
        yield Stack(engine, policy, env, valkey, serving.pid)


def chat(turn: int) -> list[dict[str, str]]:
    """Return the messages of a conversation's next request."""
    reply = {"role": "assistant", "content": SAYS}
    shown = [{"role": "user", "content": f"{OBSERVATION} ({number})"} for number in range(turn + 1)]
    rest = [message for user in shown for message in (user, reply)][:-1]
    return [{"role": "system", "content": SYSTEM}, *rest]


async def hold(client: httpx.AsyncClient, place: Place, turn: int) -> None:
    body = {"model": "policy", "messages": chat(turn), "max_tokens": 32}
    found = await post_json(client, place[0] + CHAT, body, headers=place[1])
    assert found["choices"][0]["message"]["content"].strip() == SAYS, found


async def made(env: httpx.AsyncClient, count: int) -> list[Place]:
    """Make sessions; return where they are held."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one() -> Place:
        async with gate:
            found = await post_json(env, "/v1/sessions", {})
        path = httpx.URL(found["base_url"]).path
        return path, {"authorization": f"Bearer {found['key']}"}

    return list(await asyncio.gather(*(one() for _ in range(count))))


async def conversations(
    client: httpx.AsyncClient, places: Sequence[Place], gap: float = 0.0
) -> list[float]:
    """Hold conversations, `CLIENTS` at a time, turn by turn at once or `gap` seconds apart; how long each turn took."""
    took: list[float] = []
    left, begin = iter(places), time.perf_counter()

    async def agent(number: int) -> None:
        due = begin + number / CLIENTS * gap
        for place in left:
            for turn in range(TURNS):
                await asyncio.sleep(max(0.0, due - time.perf_counter()) if gap else 0.0)
                start = time.perf_counter()
                await hold(client, place, turn)
                took.append(time.perf_counter() - start)
                due += gap

    await asyncio.gather(*(agent(number) for number in range(CLIENTS)))
    return took


async def look(
    client: httpx.AsyncClient, places: Sequence[Place], stack: Stack, gap: float = 0.0
) -> dict[str, float]:
    valkey = redis.Redis(port=stack.valkey)
    reads, used, start = trips(valkey), cpu_s(stack.pid), time.perf_counter()
    took = await conversations(client, places, gap)
    seconds, cuts = time.perf_counter() - start, statistics.quantiles(took, n=100)
    return {
        "rate": len(took) / seconds,
        "p50_ms": cuts[49] * 1e3,
        "p99_ms": cuts[98] * 1e3,
        "cpu_ms": (cpu_s(stack.pid) - used) / len(took) * 1e3,
        "trips": (trips(valkey) - reads - 1) / len(took),
    }


def trips(valkey: "redis.Redis") -> int:
    """How often Valkey has read from a connection: a pipeline is read once."""
    found: Any = valkey.info("stats")
    return int(found["total_reads_processed"])


async def compare(stack: Stack, held: int) -> dict[str, Any]:
    """Measure both ways in turn, twice each, so that a busy moment of the machine does not meet only one of them."""
    ways = ("plain", "sessions")
    async with http_client(stack.policy) as policy, http_client(stack.env) as env:
        for client in (env, policy):
            await get_json(client, "/readyz", deadline_s=60)

        async def fresh(way: str) -> list[Place]:
            if way == "sessions":
                return await made(env, held)
            return [("/v1", {})] * held

        async def alternately(gap: float = 0.0) -> dict[str, dict[str, float]]:
            rounds = [
                {way: await look(policy, await fresh(way), stack, gap) for way in ways}
                for _ in range(2)
            ]
            return {
                way: {key: statistics.fmean(r[way][key] for r in rounds) for key in rounds[0][way]}
                for way in ways
            }

        for way in ways:  # what is slow once is not measured
            await conversations(policy, await fresh(way))
        found = {"one by one": await alternately()}
        rate = PACED_SHARE * found["one by one"]["sessions"]["rate"]
        return found | {"paced": await alternately(CLIENTS / rate)}


# ---- what comes out ----


def rows(found: dict[str, Any]) -> Iterator[Row]:
    paced, one = found["paced"], found["one by one"]
    added = paced["sessions"]["p50_ms"] - paced["plain"]["p50_ms"]
    yield Row("64 agents, paced: added p50 of a turn", f"{added:.1f} ms", f"{ADDED_MS:g} ms", added <= ADDED_MS)  # fmt: skip
    yield Row("64 requests in flight: share of the plain route's throughput", f"{one['sessions']['rate'] / one['plain']['rate']:.0%}")  # fmt: skip
    yield Row("round trips to Valkey a turn", f"{one['sessions']['trips']:.1f}")
    yield Row("CPU of the service a turn", f"{one['sessions']['cpu_ms']:.2f} ms")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--conversations", type=int, default=320, help="of six turns, each way, twice"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, deployment(Path(folder)) as stack:
        found = uvloop.run(compare(stack, options.conversations))
    print(f"machine: {machine()}")
    show_rows("sessions", rows(found))
    keep("sessions", found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
