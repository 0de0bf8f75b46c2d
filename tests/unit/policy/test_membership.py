"""Engines that come, go, fail or fall silent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from services.policy.engines.discovery import RESOLVE_S, Directory, parse_sources
from services.policy.engines.pool import STRIKES, Limits, Pool
from services.policy.engines.sglang import SGLangEngine
from services.policy.gateway import Gateway
from services.policy.weights.adapters import Version
from services.policy.weights.sync import WeightSync
from tests.fake_engine import FakeEngine
from tests.unit.policy.conftest import GO, until
from triforge.errors import BusyError, PolicyError, UnavailableError
from triforge.types import Sampling

FIVE = ("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5")


class World:
    """A service whose engines are found by name, a clock, and everything that can go wrong with them."""

    def __init__(self, model: Path, **limits: float) -> None:
        self.model = str(model)
        self.hosts: Sequence[str] = ()
        self.fakes: dict[str, FakeEngine] = {}
        self.now = 0.0
        directory = Directory(
            parse_sources("dns://engines:1"), resolve=self.resolve, clock=lambda: self.now
        )
        self.pool = Pool(
            directory=directory,
            make=self.make,
            limits=Limits(**limits),  # type: ignore[arg-type]
            wait_s=0.0,
        )
        self.weights = WeightSync(self.pool, role="policy", model_path=self.model)
        self.gateway = Gateway(self.pool, self.weights)

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        return self.hosts

    def make(self, url: str) -> SGLangEngine:
        fake = self.fakes.setdefault(url, FakeEngine(model_path=self.model))
        fake.weights.load(self.model)
        return SGLangEngine(url, transport=httpx.ASGITransport(fake))

    async def look(self, *hosts: str) -> None:
        """The name has these addresses now, and the weight sync looks."""
        self.hosts = hosts or self.hosts
        self.now += RESOLVE_S
        await self.weights.look()

    def fake(self, host: str) -> FakeEngine:
        return self.fakes[f"http://{host}:1"]

    def chosen(self, count: int) -> list[str]:
        found = [self.pool.choose(f"group-{n}") for n in range(count)]
        return [member.engine.url for member in found if member is not None]


@pytest.fixture
def world(model: Path) -> World:
    return World(model)


async def held(world: World, count: int) -> list[asyncio.Task[object]]:
    """So many requests that their engines hold."""
    for fake in world.fakes.values():
        fake._go.clear()
    tasks = [asyncio.create_task(world.gateway.generate([GO])) for _ in range(count)]
    await until(lambda: sum(fake.running for fake in world.fakes.values()) >= min(count, 4))
    return tasks  # type: ignore[return-value]


async def test_engines_of_a_name_join_and_leave_while_the_service_serves(world: World) -> None:
    with pytest.raises(UnavailableError, match="no engine is known yet"):
        await world.gateway.generate([GO])
    await world.look(*FIVE[:2])
    assert len(world.pool.serving()) == 2
    await world.look(*FIVE[1:3])
    assert [m.engine.url for m in world.pool.serving()] == ["http://10.0.0.2:1", "http://10.0.0.3:1"]  # fmt: skip
    assert (await world.gateway.generate([GO]))[0].outputs


async def test_watch_survives_errors(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.hosts = ("no address",)  # a name server answers nonsense
    weights = WeightSync(world.pool, role="policy", model_path=world.model, probe_s=0.001)
    watch = asyncio.create_task(weights.watch())
    await until(lambda: "a look at the engines failed" in caplog.text)
    world.hosts, world.now = FIVE[:1], RESOLVE_S
    await until(world.pool.serving)
    watch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watch


async def test_sixth_engine_takes_a_sixth_of_the_groups(world: World) -> None:
    await world.look(*FIVE)
    before = world.chosen(3000)
    await world.look(*FIVE, "10.0.0.6")
    after = world.chosen(3000)
    moved = [now for then, now in zip(before, after, strict=True) if then != now]
    assert set(moved) == {"http://10.0.0.6:1"}
    assert abs(len(moved) / 3000 - 1 / 6) < 0.03
    await world.look(*FIVE)
    assert world.chosen(3000) == before


async def test_an_engine_that_leaves_ends_what_it_has_and_gets_nothing_new(world: World) -> None:
    await world.look(*FIVE[:2])
    tasks = await held(world, 2)
    gone = world.fake(FIVE[0])
    assert gone.running == 1
    await world.look(FIVE[1])
    assert [m.engine.url for m in world.pool.left] == [f"http://{FIVE[0]}:1"]
    assert {m.engine.url for _, m in [(0, world.pool.choose(""))] if m} == {f"http://{FIVE[1]}:1"}
    for fake in world.fakes.values():
        fake._go.set()
    await asyncio.gather(*tasks)
    assert gone.paths().count("/generate") == 1
    await until(lambda: not world.pool.left)


async def test_an_engine_that_falls_silent_loses_its_requests_to_the_others(world: World) -> None:
    await world.look(*FIVE[:2])
    silent = world.fake(FIVE[0])
    silent.silent = True
    asked = asyncio.create_task(world.gateway.generate([GO]))
    await until(lambda: silent.paths().count("/generate"))
    assert (await world.gateway.generate([GO]))[0].outputs  # the other one serves meanwhile
    (member, _) = world.pool.members
    for _ in range(STRIKES):
        world.pool.exclude(member, "does not answer a probe")
        await world.pool.refresh()
    assert (await asked)[0].outputs
    assert member.in_flight == 0
    failures = world.pool.metrics.engine_failures.labels(member.url, "unavailable")
    assert failures._value.get() == 1


async def test_the_only_engine_keeps_its_requests_however_long_it_is_silent(world: World) -> None:
    await world.look(FIVE[0])
    (task,) = await held(world, 1)
    (member,) = world.pool.members
    for _ in range(2 * STRIKES):
        world.pool.exclude(member, "does not answer a probe")
        await world.pool.refresh()
    world.fake(FIVE[0])._go.set()
    assert await task


async def test_slow_engine_is_replaced_by_another(model: Path) -> None:
    world = World(model, request_s=0.5)
    await world.look(*FIVE[:2])
    world.fake(FIVE[0]).silent = True
    assert (await world.gateway.generate([GO]))[0].outputs
    assert world.fake(FIVE[1]).paths().count("/generate") == 1


async def test_a_request_is_tried_once_more_on_another_engine_and_then_fails(world: World) -> None:
    await world.look(*FIVE[:3])
    for host in FIVE[:3]:
        world.fake(host).fail_next = 1
    with pytest.raises(PolicyError, match="set to fail"):
        await world.gateway.generate([GO])
    assert sorted(f.paths().count("/generate") for f in world.fakes.values()) == [0, 1, 1]
    assert len(world.pool.serving()) == 3
    assert (await world.gateway.generate([GO]))[0].outputs


async def test_a_wait_that_is_too_long_ends_as_busy(model: Path) -> None:
    world = World(model, in_flight=1, queue_s=0.01)
    await world.look(FIVE[0])
    (task,) = await held(world, 1)
    with pytest.raises(BusyError, match="TRIFORGE_QUEUE_S"):
        await world.gateway.generate([GO])
    world.fake(FIVE[0])._go.set()
    assert await task
    assert (world.pool.in_flight(), world.pool.waiting) == (0, 0)


async def test_limits_of_running_and_waiting_requests(model: Path) -> None:
    world = World(model, in_flight=4, waiting=3)
    await world.look(FIVE[0])
    tasks = await held(world, 7)
    await until(lambda: world.pool.waiting == 3)
    assert world.fake(FIVE[0]).running == 4
    with pytest.raises(BusyError, match="TRIFORGE_MAX_WAITING=3"):
        await world.gateway.generate([GO])
    world.fake(FIVE[0])._go.set()
    assert len(await asyncio.gather(*tasks)) == 7
    assert (world.pool.in_flight(), world.pool.waiting) == (0, 0)


async def test_answer_of_older_weights_is_not_returned(world: World) -> None:
    await world.look(*FIVE[:2])
    stale = world.fake(FIVE[0])
    world.weights._versions.active = Version(5, world.model)
    world.fake(FIVE[1]).version = "5"
    assert stale.version == "0"  # started again at its old address, and not looked at yet
    (reply,) = await world.gateway.generate([GO])
    assert {span.version for span in reply.outputs[0].versions} == {5}
    assert [m.serving for m in world.pool.members] == [False, True]
    assert world.pool.lost.is_set()


async def test_samples_without_seeds_travel_as_one_request_and_others_apart(world: World) -> None:
    await world.look(FIVE[0])
    plain = GO.model_copy(update={"n": 3})
    seeded = GO.model_copy(update={"n": 2, "sampling": Sampling(seed=7)})
    first, second, third = await world.gateway.generate([plain, seeded, GO])
    assert [len(r.outputs) for r in (first, second, third)] == [3, 2, 1]
    asked = [body for path, body in world.fake(FIVE[0]).calls if path == "/generate"]
    assert sorted(len(body["input_ids"]) for body in asked) == [1, 3]
    (alone,) = [body for body in asked if len(body["input_ids"]) == 1]
    assert alone["sampling_params"][0]["n"] == 3
