r"""Cost of a session: conversations of six turns in sessions and at the plain route of one policy service.

The engine has no latency, env_adapter and Valkey run as `triforge up` starts them. Four looks, each way in turn in one run:

    paced        64 agents ask at a steady rate, far below what either way can bear: what is added is work and not a queue
    one by one   64 requests in flight at all times: requests a second
    soak         4,096 agents at once, a session of six turns each, each with a reward at its end: errors and memory
    counted      round trips to Valkey a turn, and processor time of the service: they do not depend on what else runs

Run: python -m bench.sessions [--only ways|soak]
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
from bench.machine import Row, cpu_s, keep, machine, process, rss_mib, show_rows
from triforge.clients.transport import get_json, http_client, post_json
from triforge.store.database import open_database
from triforge.supervisor.layout import server_command
from triforge.supervisor.ports import free_port
from triforge.testing.model_folders import chatml_folder

SOAK, ADDED_MS = 4096, 2.0
CONNECTIONS = (
    512  # of the agents together in the soak: more at a moment than a listening socket takes in
)
PACED_SHARE = 0.25  # of what sessions can bear one by one
AT_ONCE = 64  # sessions that are made or rewarded at a time
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


async def made(env: httpx.AsyncClient, count: int) -> list[tuple[str, Place]]:
    """Sessions: their ids, and where they are held."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one() -> tuple[str, Place]:
        async with gate:
            found = await post_json(env, "/v1/sessions", {})
        path = httpx.URL(found["base_url"]).path
        return found["session"]["id"], (path, {"authorization": f"Bearer {found['key']}"})

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
                return [place for _, place in await made(env, held)]
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


async def soak(stack: Stack, waves: int) -> list[dict[str, float]]:
    """4,096 agents at once, from the making of their sessions to their rewards; a second wave shows what memory keeps."""
    async with (
        http_client(stack.policy, max_connections=CONNECTIONS, timeout_s=300.0) as policy,
        http_client(stack.env) as env,
    ):
        for client in (env, policy):
            await get_json(client, "/readyz", deadline_s=60)
        policy.timeout = httpx.Timeout(3600.0)  # also until connected: the bench itself is busy
        return [await _wave(policy, env, stack.pid) for _ in range(waves)]


async def _wave(policy: httpx.AsyncClient, env: httpx.AsyncClient, pid: int) -> dict[str, float]:
    failed: list[Exception] = []
    gate = asyncio.Semaphore(AT_ONCE)

    async def agent(place: Place) -> None:
        try:
            for turn in range(TURNS):
                await hold(policy, place, turn)
        except Exception as error:  # noqa: BLE001 - counted
            failed.append(error)

    async def reward(session_id: str) -> None:
        try:
            async with gate:
                given = await post_json(env, f"/v1/sessions/{session_id}/reward", {"score": 1.0})
            assert given["status"] == "finished", given
        except Exception as error:  # noqa: BLE001 - counted
            failed.append(error)

    before, start = rss_mib(pid), time.perf_counter()
    sessions = await made(env, SOAK)
    ready, made_mb = time.perf_counter(), rss_mib(pid)
    print(f"{SOAK} sessions made in {ready - start:.0f} s", flush=True)
    await asyncio.gather(*(agent(place) for _, place in sessions))
    played, played_mb = time.perf_counter(), rss_mib(pid)
    print(
        f"{SOAK * TURNS} turns in {played - ready:.0f} s, {len(failed)} errors, {before:.0f} to {played_mb:.0f} MiB",
        flush=True,
    )
    await asyncio.gather(*(reward(session_id) for session_id, _ in sessions))
    end = time.perf_counter()
    if failed:
        print(f"first error: {failed[0]!r}", file=sys.stderr)
    return {
        "sessions": SOAK, "errors": len(failed), "make_s": ready - start, "turns_s": played - ready,
        "rewards_s": end - played, "memory_before_mb": before, "memory_made_mb": made_mb, "memory_played_mb": played_mb,
        "memory_mb": rss_mib(pid),
    }  # fmt: skip


# ---- what comes out ----


def rows(found: dict[str, Any]) -> Iterator[Row]:
    if "ways" in found:
        paced, one = found["ways"]["paced"], found["ways"]["one by one"]
        added = paced["sessions"]["p50_ms"] - paced["plain"]["p50_ms"]
        yield Row("64 agents, paced: added p50 of a turn", f"{added:.1f} ms", f"{ADDED_MS:g} ms", added <= ADDED_MS)  # fmt: skip
        yield Row("64 requests in flight: share of the plain route's throughput", f"{one['sessions']['rate'] / one['plain']['rate']:.0%}")  # fmt: skip
        yield Row("round trips to Valkey a turn", f"{one['sessions']['trips']:.1f}")
    for wave in found.get("soak", []):
        yield Row(f"{wave['sessions']} sessions at once, {TURNS} turns each: errors", f"{wave['errors']}", "0", not wave["errors"])  # fmt: skip
        points = [wave[f"memory_{at}mb"] for at in ("before_", "made_", "played_", "")]
        yield Row("memory of the service: before, made, played, rewarded", f"{', '.join(f'{mb:.0f}' for mb in points)} MiB")  # fmt: skip


async def measure(stack: Stack, options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {"machine": machine()}
    if options.only != "soak":
        found["ways"] = await compare(stack, options.conversations)
    if options.only != "ways":
        found["soak"] = await soak(stack, options.waves)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=("ways", "soak"), help="this part alone")
    parser.add_argument(
        "--conversations", type=int, default=320, help="of six turns, each way, twice"
    )
    parser.add_argument("--waves", type=int, default=1, help="of the soak")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, deployment(Path(folder)) as stack:
        found = uvloop.run(measure(stack, options))
    print(f"machine: {found['machine']}")
    show_rows("sessions", rows(found))
    keep("sessions", found)
    return int(any(wave["errors"] for wave in found.get("soak", [])))


if __name__ == "__main__":
    sys.exit(main())
