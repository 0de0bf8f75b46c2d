"""The controllers as plain objects: outcome in, changed tasks out, no queue and no web."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest

from methods.rlve.options import RlveOptions
from services.env_adapter.adaptation.adapter import Adapter, make_adapter
from services.env_adapter.adaptation.controllers import ControllerParts
from services.env_adapter.adaptation.measurement import Closed
from services.env_adapter.adaptation.settings import AdaptSettings, RunOutcome
from services.env_adapter.pools.changes import Change, Changes, PoolChange
from services.env_adapter.pools.creation import PoolMaker
from services.env_adapter.pools.plans import Planner
from services.env_adapter.pools.store import PoolStore
from tests.sections import adapt_settings
from triforge.config import parse
from triforge.config.methods import MethodOptions
from triforge.environments import registry
from triforge.errors import ConfigError
from triforge.methods import Controller, Method
from triforge.rollout.protocols import Generate
from triforge.store.database import Database, open_database
from triforge.store.tables import NoteRow
from triforge.testing.fakes import FakeGenerate
from triforge.types import (
    GenerateRequest,
    GenerateSpec,
    Params,
    PlanRequest,
    PoolRequest,
)


def first_choice(request: GenerateRequest) -> str:
    return (request.sampling.regex or "It is easy.").split("|")[0]


class Kitchen:
    """A pool of some slots, by default of household, and an adapter."""

    def __init__(
        self,
        database: Database,
        slots: int = 6,
        generate: Generate | None = None,
        environment: str = "household",
    ) -> None:
        self.database = database
        self.store = PoolStore(database)
        request = PoolRequest(
            name="k", environment=environment, generate=GenerateSpec(count=slots, seed=5)
        )
        self.pool = PoolMaker(database, registry.family).create(request, [])[0]
        self.adapter = make_adapter(database, registry.family, generate)
        self.items = 0

    def active(self) -> list[str]:
        return [task.id for task in self.store.tasks("k", state="active").items]

    def outcome(self, task_id: str, successes: int, *, group: str = "", **more: Any) -> RunOutcome:
        self.items += 1
        fields: dict[str, Any] = {
            "purpose": "train",
            "measured": 16,
            "step": 1,
            "run_id": "r",
            **more,
        }
        return RunOutcome(
            group_id=group or f"g{self.items}", pool_id=self.pool.id, task_id=task_id,
            successes=successes, rollouts=16, policy_version=1, **fields,
        )  # fmt: skip

    async def play(self, task_id: str, successes: int, settings: AdaptSettings, **more: Any) -> Any:
        return await self.adapter.handle(
            self.outcome(task_id, successes, settings=settings, **more)
        )

    def ladder(self, run: str = "r", kind: str = "") -> tuple[int, int, int] | None:
        with self.database.read() as session:
            row = session.get(NoteRow, ("rlve", run, kind))
            return None if row is None else tuple(row.value.values())

    def level(self, task_id: str) -> int | None:
        with self.database.read() as session:
            row = session.get(NoteRow, ("rlve", task_id, ""))
            return None if row is None else row.value["level"]


@pytest.fixture
def kitchen(database: Database) -> Kitchen:
    return Kitchen(database)


# ---- none ----


async def test_none_counts_and_changes_nothing(kitchen: Kitchen) -> None:
    before = kitchen.active()
    assert await kitchen.play(before[0], 0, adapt_settings(controller="none")) == ()
    assert kitchen.active() == before
    assert len(kitchen.store.detail(before[0]).measurements) == 1


# ---- llm_rewrite ----


async def test_a_slot_with_nothing_left_near_its_root_says_so_once(database: Database) -> None:
    kitchen = Kitchen(database, generate=FakeGenerate(first_choice))
    settings = adapt_settings(max_drift=0.0)
    task = kitchen.active()[0]
    (made,) = await kitchen.play(task, 0, settings)
    assert made.state == "invalid"
    assert "adaptation.max_drift" in made.reason
    assert await kitchen.play(task, 0, settings) == ()


async def test_a_model_that_hangs_is_given_up_with_the_time(database: Database) -> None:
    async def hang(request: GenerateRequest) -> Any:
        await asyncio.Event().wait()

    kitchen = Kitchen(database, generate=hang)
    (made,) = await kitchen.play(kitchen.active()[0], 0, adapt_settings(deadline_s=0.01))
    assert (made.state, made.candidate_id) == ("invalid", None)
    assert "adaptation.deadline_s" in made.reason
    assert kitchen.adapter is not None


# ---- ladder ----

LADDER = adapt_settings(controller="rlve", controller_options=RlveOptions(rollouts=32))


async def test_the_ladder_replaces_every_played_task_by_a_fresh_one_of_its_window(
    kitchen: Kitchen,
) -> None:
    task = kitchen.active()[0]
    (made,) = await kitchen.play(task, 8, LADDER)  # inside the band: the ladder does not care
    assert (made.state, made.controller, made.answer) == ("accepted", "rlve", "level 0")
    assert made.reason == "ladder: no ladder made the task, so its group counts nothing"
    assert made.candidate_id in kitchen.active()
    assert task not in kitchen.active()
    assert kitchen.level(made.candidate_id) == 0
    candidate = kitchen.store.task(made.candidate_id)
    assert registry.family("household").validate(candidate.params).instruction == (
        candidate.instruction
    )


async def test_where_people_approve_the_ladder_waits_for_them(kitchen: Kitchen) -> None:
    changes = Changes(kitchen.database)
    changes.set_approval("k", PoolChange(approval="manual"))
    task = kitchen.active()[0]
    (made,) = await kitchen.play(task, 8, LADDER)
    assert (made.state, made.answer) == ("awaiting", "level 0")
    assert task in kitchen.active()
    (again,) = await kitchen.play(task, 8, LADDER)
    assert (again.state, again.reason) == ("invalid", "another task of the slot waits for a person")
    changes.decide(made.id, "approve", Change())
    assert made.candidate_id in kitchen.active()
    assert task not in kitchen.active()
    await kitchen.play(made.candidate_id, 16, LADDER)
    assert kitchen.ladder() == (0, 16, 16), "an approved task counts at its level"


async def climb(kitchen: Kitchen, groups: int, successes: int) -> None:
    for _ in range(groups):
        await kitchen.play(kitchen.active()[0], successes, LADDER)


async def test_the_window_moves_when_the_top_level_is_solved_and_only_then(
    kitchen: Kitchen,
) -> None:
    await climb(kitchen, 1, 16)  # the pool's own task has no level
    assert kitchen.ladder() is None
    await climb(kitchen, 1, 15)
    assert kitchen.ladder() == (0, 16, 15)
    await climb(kitchen, 1, 13)  # 28 of 32
    assert kitchen.ladder() == (0, 0, 0)
    await climb(kitchen, 2, 15)  # 30 of 32
    assert kitchen.ladder() == (1, 0, 0)


async def test_what_could_not_be_measured_is_no_success_and_no_failure(kitchen: Kitchen) -> None:
    await climb(kitchen, 1, 16)
    await kitchen.play(kitchen.active()[0], 0, LADDER, measured=0)
    assert kitchen.ladder() == (0, 0, 0)


async def test_a_group_that_arrives_again_or_at_two_workers_counts_once(kitchen: Kitchen) -> None:
    await climb(kitchen, 1, 16)
    outcome = kitchen.outcome(kitchen.active()[0], 15, group="same", settings=LADDER)
    others = [
        make_adapter(open_database(str(kitchen.database.url)), registry.family) for _ in range(3)
    ]

    def work(adapter: Adapter) -> int:
        return len(asyncio.run(adapter.handle(outcome)))

    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(work, [kitchen.adapter, *others] * 2))
    assert sum(made) == 1
    assert kitchen.ladder() == (0, 16, 15)
    slot = kitchen.store.lineage(kitchen.active()[0])
    assert [version.task.state for version in slot.versions].count("active") == 1


async def test_every_run_climbs_its_own_ladder_and_goes_on_where_it_stood(
    kitchen: Kitchen,
) -> None:
    await climb(kitchen, 4, 16)
    mine = kitchen.ladder()
    assert mine is not None
    assert mine[0] == 1
    kitchen.adapter = make_adapter(kitchen.database, registry.family)  # after a restart
    await kitchen.play(kitchen.active()[0], 16, LADDER, run_id="other")
    other = kitchen.ladder("other")
    assert other is None or other[0] == 0
    assert kitchen.ladder() == mine
    while kitchen.ladder() == mine:  # a task of the top level comes, and the first run counts on
        await climb(kitchen, 1, 16)
    assert kitchen.ladder() == (1, mine[1] + 16, mine[2] + 16)


async def test_a_level_that_cannot_be_made_leaves_the_slot_with_the_reason(
    kitchen: Kitchen,
) -> None:
    options: Params = {"goals": ["place"], "receptacles": [3, 4]}
    high = RlveOptions(start=9, levels=1, options=options)
    before = kitchen.active()
    (made,) = await kitchen.play(
        before[0], 16, adapt_settings(controller="rlve", controller_options=high)
    )
    assert (made.state, made.candidate_id) == ("invalid", None)
    assert "level 9" in made.reason
    assert kitchen.active() == before


# ---- a window a kind ----

KINDS = adapt_settings(
    controller="rlve",
    controller_options=RlveOptions(rollouts=16, options={"puzzles": ["total", "truth"]}),
)


class Player:
    """Solves one kind of puzzle and no other."""

    def __init__(self, kitchen: Kitchen, solves: str) -> None:
        self.kitchen, self.solves = kitchen, solves

    async def play(self, groups: int) -> list[str]:
        """Play groups and return the reason of each proposal."""
        reasons = []
        for _ in range(groups):
            task = self.kitchen.store.task(self.kitchen.active()[0])
            successes = 16 if task.kind == self.solves else 0
            (made,) = await self.kitchen.play(task.id, successes, KINDS)
            reasons.append(made.reason)
        return reasons


async def test_each_kind_has_a_window_that_moves_by_its_own_groups(database: Database) -> None:
    kitchen = Kitchen(database, slots=1, environment="puzzles")
    reasons = await Player(kitchen, "total").play(16)
    high = {kind: (kitchen.ladder(kind=kind) or (0,))[0] for kind in ("total", "truth")}
    assert high["total"] >= 1
    assert high["truth"] == 0
    assert any(line.startswith("ladder: the window of truth is 0 to 0, 0 of ") for line in reasons)
    assert kitchen.ladder() is None, "no window for all kinds"
    task = kitchen.store.task(kitchen.active()[0])
    assert task.params["puzzle"] == task.kind
    assert task.params["level"] == kitchen.level(task.id)


async def test_windows_by_kind_go_on_the_same_after_a_restart(tmp_path: Path) -> None:
    async def windows(name: str, *, restart: bool) -> list[Any]:
        kitchen = Kitchen(
            open_database(f"sqlite:///{tmp_path}/{name}.sqlite"), slots=1, environment="puzzles"
        )
        player, seen = Player(kitchen, "total"), []
        for _ in range(6):
            if restart:
                kitchen.adapter = make_adapter(kitchen.database, registry.family)
            await player.play(1)
            seen.append([kitchen.ladder(kind=kind) for kind in ("total", "truth")])
        return seen

    straight = await windows("straight", restart=False)
    assert straight[-1][0] is not None
    assert await windows("broken", restart=True) == straight


def test_the_levels_of_the_household_are_lengths_of_plans() -> None:
    from environments.household.params import world_of
    from environments.household.planner import plan

    family: Any = registry.family("household")
    for level in range(5):
        options = family.at_level(level, {"receptacles": [4, 6]})
        for params in family.generate(count=10, seed=level, options=options):
            steps = len(plan(world_of(params)) or ())
            assert steps == level + 4 or (level == 0 and steps < 4)


# ---- original tasks ----


async def test_a_share_of_the_slots_keeps_its_original_tasks(database: Database) -> None:
    kitchen = Kitchen(database, slots=12)
    before = kitchen.active()
    settings = adapt_settings(controller="rlve", original_share=0.25)
    for _ in range(2):
        for task in kitchen.active():
            await kitchen.play(task, 0, settings)
    assert len(set(before) & set(kitchen.active())) == 3
    plan = Planner(database).plan("k", PlanRequest(run_id="r", step=1, kind="train", groups=12))
    assert sum(group.task_id == group.slot for group in plan.items) == 3


# ---- a controller of one's own ----


class PatientOptions(MethodOptions):
    """Options of the controller below."""

    patience: int = 3


class Patient:
    """Makes no proposal, and counts the outcomes."""

    patience: ClassVar[list[int]] = []

    def __init__(self, parts: ControllerParts) -> None:
        assert parts.measurements is not None

    async def respond(self, outcome: RunOutcome) -> Closed:
        Patient.patience.append(outcome.settings.controller_options.patience)
        return Closed("it has time")


PATIENT = Method(
    name="patient", options=PatientOptions, controller=Controller(part=f"{__name__}:Patient")
)
PLAIN = Method(name="plain")


async def test_a_method_outside_of_the_package_brings_a_controller_with_options(
    kitchen: Kitchen,
) -> None:
    path = f"{__name__}:PATIENT"
    document = {"adaptation": {"controller": path}, "methods": {path: {"patience": 5}}}
    settings = AdaptSettings.of(parse(document))
    assert await kitchen.play(kitchen.active()[0], 0, settings) == ()
    assert Patient.patience == [5]
    with pytest.raises(ConfigError, match="patience"):
        parse({**document, "methods": {path: {"patience": "long"}}})


@pytest.mark.parametrize(
    "name", ["nowhere.at_all:METHOD", "services.env_adapter.app:nothing", f"{__name__}:PLAIN", "x"]
)
def test_a_name_without_a_controller_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"adaptation\.controller"):
        parse({"adaptation": {"controller": name}})
