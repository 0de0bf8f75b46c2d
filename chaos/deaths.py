"""Processes that are killed (SIGKILL), alone, in pairs, all at once; how soon their work goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from chaos.broker import Broker, is_group, is_outcome, is_trajectory
from chaos.evidence import Store
from chaos.owner import Owner, until_gone
from chaos.rounds import Round
from chaos.waiting import until, until_serves

_WATCH_S = 90.0  # how long a recovery is watched before it counts as none
_SOON_S = 20.0  # how long a scenario waits for a job to be held
_LONG = {"policy": 5.0, "reward": 25.0}  # seconds an answer takes where tasks are to be long
_GAP_S = 4.0
_REWRITE_S = 2.0  # an answer of the rewriting engine, where an adapt worker is to be met at work
_GONE_S = 30.0  # how long processes may outlive who has started them
_UPDATES = 2  # of the judge in a step
PASSES = 20  # over a step's rows: a learner of a tiny model would be done before it can be hurt
_NAMES = {
    "rollout": ("rollout-worker", "rollout-worker-2"),
    "judge": ("judge-worker", "judge-worker-2"),
    "adapt": ("adapt-worker", "adapt-worker-2"),
}


async def rollout_workers(r: Round) -> None:
    """One rollout worker dies while it plays, then both do."""
    await r.submit(run={"steps": 5})
    for step, both in ((0, False), (2, True)):
        await r.moment(step=step + r.rng.randrange(2))  # both at a time when steps are to come
        await _kill_holders(r, "rollout", both=both)
    await r.end()


async def judge_workers(r: Round) -> None:
    """One judge worker dies while it judges, then both do."""
    r.stack.proxies["reward"].delay_s = 1.0
    await r.submit(run={"steps": 5})
    for step, both in ((0, False), (2, True)):
        await r.moment(step=step + r.rng.randrange(2))  # both at a time when steps are to come
        await _kill_holders(r, "judge", both=both)
    await r.end()


async def adapt_workers(r: Round) -> None:
    """Both adapt workers die while they rewrite a task."""
    r.stack.proxies["rewriter"].delay_s = _REWRITE_S
    await r.submit()
    await r.until(step=1)
    await _kill_holders(r, "adapt", both=True)
    await r.end()


async def long_episodes(r: Round) -> None:
    """All rollout workers die in the middle of groups that take far longer than any lease."""
    r.stack.proxies["policy"].delay_s = _LONG["policy"]
    await r.submit(run={"steps": 1, "eval_every": 0}, env_adapter={"max_steps": 8})
    await r.broker.held(lambda name: r.run_id in name and is_group(name), within_s=60)
    await asyncio.sleep(r.rng.uniform(3.0, 30.0))
    r.moments.append("in episodes of 40 s")
    await _kill_holders(r, "rollout", both=True)
    r.stack.proxies["policy"].delay_s = 0.2  # what is left need not take as long
    await r.end()


async def long_judging(r: Round) -> None:
    """All judge workers die while the judge thinks for far longer than any lease, and others wait in the queue."""
    r.stack.proxies["reward"].delay_s = _LONG["reward"]
    await r.submit(run={"steps": 1, "eval_every": 0})
    await r.broker.held(lambda name: r.run_id in name and is_trajectory(name), within_s=60)
    await asyncio.sleep(r.rng.uniform(0.0, 15.0))
    r.moments.append("in judgements of 25 s a request")
    await _kill_holders(r, "judge", both=True)
    r.stack.proxies["reward"].delay_s = 0.2
    await r.end()


async def learners(r: Round) -> None:
    """Each learner dies in a step."""
    passes = {"epochs": PASSES}
    await r.submit(trainer={"policy": passes, "reward": passes})
    roles = ["policy", "reward"]
    r.rng.shuffle(roles)
    for step, role in enumerate(roles):
        await r.until(step=step)
        name = f"learner:{r.run_id}:{role}"
        held = await r.broker.held(lambda n, name=name: n == name, within_s=_WATCH_S)  # type: ignore[misc]
        await asyncio.sleep(r.rng.uniform(0.0, 0.5))
        stood, killed = r.row()["step"], time.monotonic()
        await _kill(r, held, (f"learner-{role}",), lambda _: r.row()["step"] > stood)  # noqa: B023 (awaited here)
        await r.until(step=stood + 1, within_s=_WATCH_S)
        r.moments.append(f"its step is on record {time.monotonic() - killed:.1f} s after the kill")
    await r.end()


async def promotion(r: Round) -> None:
    """Kill the judge's learner while its new version is measured on anchors, then the trainer."""
    r.stack.proxies["reward"].delay_s = 1.0
    await r.submit(
        run={"steps": 5},
        reward={"audit_share": 1.0},
        algorithm={"preset": "audited"},
        trainer={"reward": {"updates_per_step": _UPDATES}},
        methods={"audit": {"updates": _UPDATES}},
    )
    for step, name in ((1, "learner-reward"), (3, "trainer")):
        await r.until(step=step)
        stood = r.row()["step"]
        published = r.store.versions(r.run_id, "reward")
        await until(lambda n=published: r.store.versions(r.run_id, "reward") > n, within_s=_WATCH_S)  # type: ignore[misc]
        await asyncio.sleep(r.rng.uniform(0.0, 0.5))
        r.stack.kill(name)
        r.moments.append(f"{name} killed in step {stood + 1}, {r.row()['step']} on record")
        if r.row()["step"] > stood:
            r.missed.append(f"{name}: the version was measured already")
    await r.end()


async def trainer(r: Round) -> None:
    """Kill the trainer, and with it the orchestrator, three times anywhere in a run."""
    await r.submit(run={"steps": 6})
    name = f"orchestrator:{r.run_id}"
    for step in (0, 2, 4):
        await r.moment(step=step)
        held = await r.broker.held(lambda n: n == name, within_s=_SOON_S)
        await _kill(r, held, ("trainer",), lambda _: r.row()["status"] == "finished")
    await r.end()


async def engines(r: Round) -> None:
    """Kill the engines one after another: policy, reward model, rewriter."""
    await r.submit(run={"steps": 4})
    for step, role in enumerate(("policy", "reward", "rewriter")):
        await r.moment(step=step)
        await _kill_api(r, f"engine-{role}")
    await r.end()


async def apis(r: Round) -> None:
    """Kill the APIs of all services except the trainer's, in any order."""
    names = [f"{role}-model" for role in ("policy", "reward", "rewriter")]
    names += ["env_adapter", "reward", "dashboard"]
    await r.submit(run={"steps": len(names) + 6})  # it goes on while an API is away
    r.rng.shuffle(names)
    for step, name in enumerate(names):
        await r.moment(step=step)
        await _kill_api(r, name)
    await r.end()


async def everything(r: Round) -> None:
    """All processes die at the same moment, Valkey too, as in a power cut."""
    await r.submit()
    await r.moment()
    r.stack.kill(*r.stack.names())
    await r.end()


async def supervisor(r: Round) -> None:
    """`triforge up` itself dies: all that it had started ends with it, it is started again at once, and the run goes on."""
    owner = Owner(r.stack.config, r.stack.folder / f"owner-{r.number}")
    r.place = owner
    brokers: list[Broker] = []
    try:
        await owner.start()
        brokers.append(Broker(owner.settings.redis_url))
        r.broker, r.store = brokers[-1], Store(owner.state / "triforge.sqlite")
        await r.submit(run={"steps": 4})
        await r.moment(step=r.rng.randrange(2))
        left = owner.kill()
        again, stayed = await asyncio.gather(owner.start(), until_gone(left, within_s=_GONE_S))
        brokers.append(Broker(owner.settings.redis_url))
        r.broker = brokers[-1]
        r.demand(not stayed, f"after {_GONE_S:.0f} s still there: {', '.join(stayed)}")
        r.moments.append(f"{len(left)} processes left alone; all serve again after {again:.1f} s")
        await r.end()
    finally:
        await owner.stop()
        for broker in brokers:
            broker.close()


async def storm(r: Round) -> None:
    """Eight deaths of processes drawn at random, a few seconds apart."""
    await r.submit(run={"steps": 4})
    for _ in range(8):
        await asyncio.sleep(r.rng.uniform(0.5, _GAP_S))
        name = r.rng.choice(r.stack.names())
        r.stack.kill(name)
        r.moments.append(name)
    await r.end()


async def _kill_holders(r: Round, queue: str, *, both: bool) -> None:
    """Kill one worker of a queue, or both, while jobs are held; see how long they stay alone."""
    kind = {"rollout": is_group, "judge": is_trajectory, "adapt": is_outcome}[queue]
    done: Callable[[str], bool] = {
        "rollout": r.broker.is_played,
        "judge": r.broker.is_judged,
        "adapt": lambda name: r.broker.is_adapted(name.removeprefix("adapt:")),
    }[queue]
    names = _NAMES[queue] if both else (r.rng.choice(_NAMES[queue]),)
    held = await r.broker.held(lambda name: r.run_id in name and kind(name), within_s=_SOON_S)
    await _kill(r, held, names, done)


async def _kill(
    r: Round, held: dict[str, str], names: tuple[str, ...], done: Callable[[str], bool]
) -> None:
    r.stack.kill(*names)
    taken = await r.broker.until_taken_over(held, done, within_s=_WATCH_S)
    r.moments.append(f"{' and '.join(names)} killed, {len(taken)} of {len(held)} jobs orphaned")
    if not taken:
        r.missed.append(f"{' and '.join(names)} held nothing, or had done it")
    r.recovered(taken)


async def _kill_api(r: Round, name: str) -> None:
    url = r.stack.process(name).spec.ready_url
    before = r.stack.restarts(name)
    r.stack.kill(name)
    # until then the dead one's port may still seem open
    await until(lambda: r.stack.restarts(name) > before, within_s=_WATCH_S)
    took = await until_serves(url, within_s=_WATCH_S)
    r.demand(took < _WATCH_S, f"{name} does not serve again")
    r.moments.append(f"{name} killed, serves again after {took:.1f} s")
