"""Everything that is not a death: frozen processes, a restarted broker, bad messages, a full disk, slow engines, wrong clocks."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from chaos.broker import envelope, is_group, is_trajectory
from chaos.deaths import PASSES
from chaos.evidence import gather
from chaos.invariants import payloads
from chaos.rounds import Round, Untried
from chaos.volume import SmallDisk
from chaos.waiting import until, until_serves
from triforge.broker import (
    ADAPT_TASK,
    EVENTS_STREAM,
    JUDGE_TASK,
    JUDGED_STREAM,
    QUEUES,
    ROLLOUT_TASK,
    WEIGHTS_STREAM,
)
from triforge.supervisor.process import Process
from triforge.types import ENDED

_WATCH_S = 90.0
_LATE = 3  # jobs of the past that come at a time
_DRIFT = Path(__file__).with_name("drift")
_TWO_HOURS = 7200.0
WORKERS = ("rollout-worker", "rollout-worker-2", "judge-worker", "judge-worker-2", "adapt-worker", "adapt-worker-2")  # fmt: skip
_READERS = (*WORKERS, "trainer", "learner-policy", "learner-reward", "dashboard")
_STREAMS = (JUDGED_STREAM, WEIGHTS_STREAM, EVENTS_STREAM, "tf:batches:policy", "tf:batches:reward")
_TASKS = dict(zip(QUEUES, (ROLLOUT_TASK, JUDGE_TASK, ADAPT_TASK), strict=True))


async def broker_restarts(r: Round) -> None:
    """Valkey is killed twice; it comes back with its append-only file."""
    await r.submit()
    for step in (0, 1):
        await r.moment(step=step)
        before = r.stack.restarts("valkey")
        r.stack.kill("valkey")
        back = await until(lambda n=before: r.stack.restarts("valkey") > n, within_s=_WATCH_S)  # type: ignore[misc]
        r.demand(back, "Valkey was not started again")
    await r.end()


async def broker_hangs(r: Round) -> None:
    """Valkey answers nothing for longer than a lease, and then goes on."""
    await r.submit()
    await r.moment()
    r.stack.freeze("valkey")
    await asyncio.sleep(r.rng.uniform(11.0, 15.0))
    r.stack.thaw("valkey")
    await r.end()


async def database_held(r: Round) -> None:
    """Hold the database's write lock, first for seconds, then for longer than a writer waits."""
    await r.submit()
    for step, seconds in ((0, r.rng.uniform(3.0, 8.0)), (1, 33.0)):
        await r.moment(step=step)
        await asyncio.to_thread(_hold, r.stack.state / "triforge.sqlite", seconds)
        r.moments.append(f"held for {seconds:.0f} s")
    await r.end()


def _hold(path: Path, seconds: float) -> None:
    with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as link:
        link.execute("BEGIN IMMEDIATE")
        time.sleep(seconds)
        link.execute("ROLLBACK")


async def full_disk(r: Round) -> None:
    """Fill the artifact store's disk; free it later and resume the run."""
    taken = await _fill(r, r.stack.disk)
    status = await r.until(within_s=40.0)
    shown_reason = str(r.row()["reason"])
    r.demand(status == "failed", f"with a full disk the run is {status}")
    r.demand(
        "disk is full" in shown_reason or "No space" in shown_reason,
        f"the reason does not say what is wrong: {shown_reason!r}",
    )
    r.stack.disk.free()
    r.moments.append(f"{taken >> 20} MiB filled; the run was {status}: {shown_reason[-90:]}")
    if status == "failed":
        await r.resume()
    await r.end()


async def _fill(r: Round, disk: SmallDisk) -> int:
    """Begin a run and fill a disk somewhere in it; how many bytes that took."""
    if not disk.bounded:
        raise Untried("this process may mount no disk of its own, and fills no other")
    await r.submit(run={"steps": 6})
    await r.moment(step=1)
    return await asyncio.to_thread(disk.fill)


async def full_state(r: Round) -> None:
    """Fill the disk of the database, of Valkey's file and of the logs; free it later."""
    taken = await _fill(r, r.stack.state_disk)
    seconds = r.rng.uniform(8.0, 20.0)
    await asyncio.sleep(seconds)
    r.stack.state_disk.free()
    await r.until(within_s=60.0)
    row = r.row()
    r.moments.append(
        f"{taken >> 20} MiB filled for {seconds:.0f} s; the run was {row['status']}: {row['reason'][-90:]}"
    )
    if row["status"] == "failed":
        await r.resume()
    await r.end()


async def bad_messages(r: Round) -> None:
    """Put garbage, unknown tasks and messages of other versions into every queue and stream; readers must skip them."""
    await r.submit()
    await r.moment()
    before = r.stack.restarts(*_READERS)
    count = 0
    for queue in QUEUES:
        for raw in _garbage(queue, r):
            r.broker.put(queue, raw)
            count += 1
    for stream in _STREAMS:
        for entry in (
            {"json": "{"},
            {"json": r.rng.randbytes(64)},
            {"json": "{}"},
            {"nothing": ""},
        ):
            r.broker.tell(stream, entry)
            count += 1
    empty = await r.broker.until_empty(within_s=60)
    r.demand(empty, f"the queues do not run empty: {r.broker.waiting()}")
    r.moments.append(f"{count} bad messages")
    await r.end()
    fell = r.stack.restarts(*_READERS) - before
    r.demand(fell == 0, f"{fell} processes fell over bad messages")


def _garbage(queue: str, r: Round) -> list[str | bytes]:
    task = _TASKS[queue]
    good = json.loads(envelope(task, "{}", queue=queue))
    return [
        r.rng.randbytes(64),
        b"",
        b"{",
        b"null",
        b"[1, 2]",
        b"{}",
        json.dumps({**good, "body": "!!! no base64"}),
        json.dumps({**good, "properties": {}}),
        json.dumps({**good, "content-type": "application/x-python-serialize"}),
        envelope("triforge.unheard_of", "{}", queue=queue),
        envelope(task, "", queue=queue),
        envelope(task, "\x00" * 10, queue=queue),
        envelope(task, json.dumps({"schema": 99, "group_id": r.run_id}), queue=queue),
    ]


async def slow_engine(r: Round) -> None:
    """Slow the engines down ten times for a while."""
    await r.submit()
    await r.moment(step=0)
    for role in ("policy", "reward"):
        r.stack.proxies[role].delay_s *= 10
    await asyncio.sleep(r.rng.uniform(5.0, 12.0))
    for role in ("policy", "reward"):
        r.stack.proxies[role].delay_s /= 10
    await r.end()


async def silent_engine(r: Round) -> None:
    """Each engine for a while takes what it is sent and answers nothing; later its connections are lost and new ones work."""
    await r.submit()
    for step, role in enumerate(("policy", "reward", "rewriter")):
        await r.moment(step=step)
        proxy = r.stack.proxies[role]
        proxy.hang()
        seconds = r.rng.uniform(5.0, 15.0)
        await asyncio.sleep(seconds)
        await proxy.cut()
        proxy.heal()
        r.moments.append(f"{role} silent for {seconds:.0f} s")
    await r.end()


async def wrong_clocks(r: Round) -> None:
    """Set the clocks of the trainer, a learner and one worker of each kind two hours off, and kill the others."""
    ahead = {"PYTHONPATH": str(_DRIFT), "CHAOS_CLOCK_SHIFT_S": str(_TWO_HOURS)}
    behind = ahead | {"CHAOS_CLOCK_SHIFT_S": str(-_TWO_HOURS)}
    learner = r.rng.choice(("learner-policy", "learner-reward"))
    drifts = {
        "rollout-worker-2": ahead, "judge-worker-2": behind, "adapt-worker-2": r.rng.choice((ahead, behind)),
        learner: r.rng.choice((ahead, behind)), "trainer": r.rng.choice((ahead, behind)),
    }  # fmt: skip
    for name, drift in drifts.items():
        await r.stack.exchange(name, drift)
    r.moments.append("; ".join(f"{n} {'ahead' if d is ahead else 'behind'}" for n, d in drifts.items()))  # fmt: skip
    try:
        await until_serves(r.stack.process("trainer").spec.ready_url, within_s=_WATCH_S)
        await r.submit()
        await r.moment(step=0)
        held = await r.broker.held(lambda n: r.run_id in n and is_group(n), within_s=20)
        r.stack.kill("rollout-worker", "judge-worker", "adapt-worker")
        r.recovered(await r.broker.until_taken_over(held, r.broker.is_played, within_s=_WATCH_S))
        await r.end()
        resent = sum(s["metrics"].get("resent", 0.0) for s in (r.evidence.steps if r.evidence else ()))  # fmt: skip
        r.moments.append(f"{resent:.0f} jobs were sent again")
    finally:
        for name in drifts:
            await r.stack.exchange(name, {"CHAOS_CLOCK_SHIFT_S": "0"})


async def zombie_workers(r: Round) -> None:
    """Freeze a worker for longer than its lease; others take its jobs, and it comes back to finish them."""
    for role in ("policy", "reward"):
        r.stack.proxies[role].delay_s = 1.5
    await r.submit(run={"steps": 4})
    for step, (name, kind, done) in enumerate(
        (
            ("rollout-worker", is_group, r.broker.is_played),
            ("judge-worker", is_trajectory, r.broker.is_judged),
        )
    ):
        await r.until(step=step)
        for twin in (name, f"{name}-2"):  # which of them holds something is not known
            if await _freeze_until_taken_over(r, twin, kind, done):
                break
    for role in ("policy", "reward"):
        r.stack.proxies[role].delay_s = 0.2
    await r.end()


async def _freeze_until_taken_over(
    r: Round, name: str, kind: Callable[[str], bool], done: Callable[[str], bool]
) -> int:
    """How many jobs were taken from a worker while it stood still."""
    held = await r.broker.held(lambda n: r.run_id in n and kind(n), within_s=20)
    r.stack.freeze(name)
    taken = await r.broker.until_taken_over(held, done, within_s=_WATCH_S)
    r.recovered(taken)
    r.moments.append(f"{name} frozen, {len(taken)} jobs taken from it")
    r.stack.thaw(name)
    return len(taken)


async def zombie_learner(r: Round) -> None:
    """Freeze a learner in a step for longer than its lease."""
    passes = {"epochs": PASSES}
    await r.submit(trainer={"policy": passes, "reward": passes})
    role = r.rng.choice(("policy", "reward"))
    name = f"learner:{r.run_id}:{role}"
    held = await r.broker.held(lambda n: n == name, within_s=_WATCH_S)
    r.stack.freeze(f"learner-{role}")
    if name not in r.broker.leases():
        r.missed.append(f"the learner of {role} had done its step")
    seconds = r.rng.uniform(11.0, 14.0)
    await asyncio.sleep(seconds)
    r.demand(name not in r.broker.leases(), f"the lease {name} outlives its holder")
    r.stack.thaw(f"learner-{role}")
    r.moments.append(
        f"the learner of {role} stood still for {seconds:.0f} s, {len(held)} lease was lost"
    )
    await r.end()


async def zombie_orchestrator(r: Round) -> None:
    """Freeze the orchestrator for longer than its lease; a second one takes the run, and the first one comes back."""
    await r.submit(run={"steps": 4})
    await r.moment(step=0)
    second = r.stack.second("trainer")
    try:
        name = f"orchestrator:{r.run_id}"
        held = await r.broker.held(lambda n: n == name, within_s=20)
        r.stack.freeze("trainer")
        await _until_another(r, name, held, second)
        await asyncio.sleep(r.rng.uniform(0.0, 4.0))
        r.stack.thaw("trainer")
        await r.end()
    finally:
        r.stack.thaw("trainer")
        await second.stop()


async def _until_another(r: Round, name: str, held: dict[str, str], second: Process) -> None:
    taken = await r.broker.until_taken_over(held, lambda _: False, within_s=_WATCH_S)
    r.demand(second.pid is not None, "the second trainer has ended")
    r.recovered(taken)
    r.moments.append(f"{name} taken over by the second trainer")


async def delivered_twice_and_late(r: Round) -> None:
    """Jobs are delivered a second time while they are worked on, others when they are done, and all after the run's end."""
    await r.submit()
    seen: dict[str, tuple[str, str]] = {}
    doubled = late = 0
    while await r.until(within_s=0.3) not in ENDED:
        jobs = r.broker.jobs(r.run_id)
        fresh = [job for job in jobs if job[1] not in seen]
        done = [job for job in seen.values() if job not in jobs]
        if r.rng.random() < 0.5:
            doubled += r.broker.again(fresh)
        if done and r.rng.random() < 0.3:
            late += r.broker.again(r.rng.sample(done, min(_LATE, len(done))))
        seen |= {job[1]: job for job in jobs}
    await r.end()
    before = r.evidence
    late += r.broker.again(seen.values())
    await r.broker.until_empty(within_s=60)
    await until(lambda: not any(r.run_id in name for name in r.broker.leases()), within_s=60)
    r.moments.append(f"{doubled} jobs twice, {late} late")
    r.evidence = await asyncio.to_thread(gather, r.store, r.stack.disk.folder, r.broker, r.run_id)
    r.check()
    assert before is not None
    r.demand(r.evidence.steps == before.steps, "late jobs changed the steps")
    r.demand(r.evidence.measurements == before.measurements, "late jobs changed what was counted")
    left = set(payloads(r.evidence)) - set(payloads(before))
    r.demand(not left, f"late jobs left payloads: {sorted(left)[:3]}")
