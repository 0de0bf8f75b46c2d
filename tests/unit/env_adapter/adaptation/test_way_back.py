"""A household task that is never solved gets the missed sub-goal alone, and step by step the whole task again."""

from __future__ import annotations

from typing import Any

from environments.household.family import FAMILY
from environments.household.params import world_of
from environments.household.planner import plan
from services.env_adapter.adaptation.adapter import make_adapter
from services.env_adapter.adaptation.settings import RunOutcome
from services.env_adapter.pools.creation import PoolMaker
from services.env_adapter.pools.store import PoolStore
from tests.sections import adapt_settings
from triforge.store.database import Database
from triforge.testing.fakes import FakeGenerate
from triforge.types import DiagnosisNote, GenerateRequest, Params, PoolRequest, Proposal

ROOM: Params = {
    "receptacles": {
        "cabinet 1": "closed", "fridge 1": "closed", "microwave 1": "closed", "shelf 1": "open",
    },
    "objects": {"mug 1": "fridge 1"},
    "goal": {"type": "heat", "object": "mug", "target": "shelf"},
    "horizon": 24,
    "hint": False,
}  # fmt: skip
FORGOT = ("go fridge", "open fridge", "take mug", "go shelf", "put mug")


def boldest(request: GenerateRequest) -> str:
    """The last of the choices with a step towards a sub-goal."""
    lines = str(request.sampling.regex).split("|")
    return [line for line in lines if "room: start" in line or "room: whole" in line][-1]


async def test_a_slot_goes_down_to_the_missed_sub_goal_and_back_to_its_root(
    database: Database,
) -> None:
    request = PoolRequest(name="p", environment="household", options={"wording": "terse"})
    pool = PoolMaker(database, lambda _: FAMILY).create(request, [("a", {"params": ROOM})])[0]
    store = PoolStore(database)
    adapter = make_adapter(database, lambda _: FAMILY, FakeGenerate(boldest))
    settings = adapt_settings(
        acceptance="paper", candidates=1, max_consecutive=0, options={"wording": "terse"}
    )
    steps = tuple((action, "ok", ()) for action in FORGOT)
    notes = (DiagnosisNote(trajectory_id="t", success=False, steps=steps),)

    async def outcome(task_id: str, step: int, successes: int, **more: Any) -> list[Proposal]:
        fields: dict[str, Any] = {"purpose": "train", **more}
        group = f"{fields['purpose']}-{step}"
        made = RunOutcome(
            group_id=group, run_id="r", pool_id=pool.id, task_id=task_id, step=step, measured=8,
            successes=successes, rollouts=8, policy_version=1, settings=settings, **fields,
        )  # fmt: skip
        return list(await adapter.handle(made))

    async def rewritten(step: int, successes: int) -> Params:
        """Propose a rewrite of the active task, accept it, and return the parameters of its successor."""
        (active,) = (t for t in store.tasks("p").items if t.state == "active")
        (proposal,) = await outcome(active.id, step, successes, notes=notes)
        assert proposal.state == "pending", proposal.reason
        assert proposal.candidate_id is not None
        measured: dict[str, Any] = {"proposal_id": proposal.id}
        await outcome(active.id, step, successes, purpose="measure_parent", **measured)
        (decided,) = await outcome(
            proposal.candidate_id, step, 4, purpose="measure_candidate", **measured
        )
        assert decided.state == "accepted"
        return store.task(proposal.candidate_id).params

    lengths = [len(plan(world_of(ROOM)) or ())]
    params = await rewritten(0, successes=0)
    while params != ROOM:
        world = world_of(params)
        assert world.goal.type == "heat"
        assert not any(world.meets(world.start(), thing) for thing in range(len(world.objects)))
        lengths.append(len(plan(world) or ()))
        params = await rewritten(len(lengths), successes=8)
    assert lengths == [
        7,
        1,
        3,
        4,
        5,
    ]  # before the treatment, and that alone; then to the end, from ever earlier
    versions = store.lineage(store.tasks("p").items[0].slot).versions
    assert [version.task.state for version in versions].count("active") == 1
