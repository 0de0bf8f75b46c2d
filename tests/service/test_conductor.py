"""Runs from queue to end: what they record, how they stop, wait and fail, and whose weights they train."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from services.trainer.runs.publish import Publisher
from tests.service.fake_ring import CONFIG, Ring, ring_of
from triforge.config import parse
from triforge.errors import StorageError, UnavailableError
from triforge.messages import ErrorInfo, RunState, TrainBatch, WeightsReady
from triforge.queues import Wire, end_task


@pytest.fixture
async def ring(wire: Wire, redis_url: str, tmp_path: Path) -> AsyncIterator[Ring]:
    async with ring_of(wire, redis_url, tmp_path) as made:
        yield made


@contextlib.asynccontextmanager
async def conducting(ring: Ring) -> AsyncIterator[None]:
    """A conductor at work in the background."""
    work = asyncio.create_task(ring.conductor().run_forever())
    try:
        yield
    finally:
        await end_task(work)


async def until(condition: Callable[[], object]) -> None:
    """Wait for what other tasks bring about; there is no event to wait for."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def versions(ring: Ring, run: RunState) -> list[tuple[int, int, int]]:
    return [(s.step, s.policy_version, s.reward_version) for s in ring.store.steps(run.id)]


async def events(ring: Ring, run: RunState) -> list[tuple[str, Any]]:
    found = await ring.wire.read_events("0", block_s=0.01, run_id=run.id)
    return [
        (event.kind, event.data.get("status") if event.kind == "run" else event.step)
        for _, event in found
        if event.kind != "group"
    ]


# ---- a run ----


async def test_a_run_commits_every_step_with_its_versions_and_measures(ring: Ring) -> None:
    run = ring.submit()
    assert (await ring.conduct(run)).status == "finished"
    assert versions(ring, run) == [(0, 1, 1), (1, 2, 2), (2, 3, 3)]
    first, second, third = (step.metrics for step in ring.store.steps(run.id))
    assert (first["eval/sampled"], first["eval/greedy"]) == (1.0, 1.0)
    assert "eval/sampled" not in second
    assert third["eval/sampled_episodes"] == 1.0
    assert (second["success"], second["judge/votes"], second["rows/policy"]) == (0.5, 8.0, 4.0)
    assert (second["policy/loss"], second["reward/loss"]) == (0.5, 0.5)
    assert (second["groups/dead"], second["groups/dead_share"]) == (0.0, 0.0)
    assert not any("broken" in name for name in second), "a metric that is no number is left out"
    assert await events(ring, run) == [
        ("run", "running"), ("evaluation", 0), ("step", 0), ("step", 1), ("evaluation", 2),
        ("step", 2), ("run", "finished"),
    ]  # fmt: skip
    assert await ring.keys() == set()
    assert not any(ring.artifacts.exists(b.uri) for b in ring.learners["acts"].batches)


async def test_a_step_says_what_the_votes_were_worth_and_what_weight_they_had(ring: Ring) -> None:
    algorithm = CONFIG["algorithm"]["overrides"] | {"vote_weight": "trust"}
    config = parse(CONFIG | {"algorithm": {"overrides": algorithm}}).model_dump(mode="json")
    run = ring.store.create(name="run", pool_id="pool", config=config)
    await ring.conduct(run)
    _, _, last = (step.metrics for step in ring.store.steps(run.id))
    # Every rollout gets one +1 and one -1, so the votes say nothing of the outcome.
    assert (last["theory/p_plus"], last["theory/mu_within"], last["theory/groups"]) == (0.5, 1, 2)
    assert (last["votes/recent/groups"], last["votes/trust"], last["votes/weight"]) == (4, 0, 0)
    assert [step for step, _ in ring.store.run_state(run.id)["votes"]] == [1, 2]
    labels = {"pool": "pool", "measure": "theory/mu_within"}
    assert REGISTRY.get_sample_value("triforge_trainer_step_measure", labels) == 1.0


async def test_a_batch_carries_what_the_learner_has_to_know(ring: Ring) -> None:
    run = ring.submit(seed=9)
    await ring.conduct(run)
    [first, second] = ring.learners["judges"].batches
    assert (first.step, first.version, second.step, second.version) == (1, 1, 2, 2)
    assert first.settings["model_path"] == "/models/judges"
    assert (first.settings["base_version"], second.settings["base_version"]) == (1, 1)
    assert (first.settings["folder_version"], second.settings["folder_version"]) == (None, 2)
    assert (first.settings["seed"], first.settings["temperature"]) == (9, 1.0)
    assert (first.num_rows, first.batch_id) == (8, f"{run.id}-00001-judges")


async def test_every_evaluation_plays_the_same_seeds_greedily_with_temperature_zero(
    ring: Ring,
) -> None:
    await ring.conduct(ring.submit())
    errands = [e for e in ring.workers.errands if e.purpose == "evaluate"]
    assert [(e.step, e.sampling.temperature) for e in errands] == [
        (0, 1.0), (0, 0.0), (2, 1.0), (2, 0.0),
    ]  # fmt: skip
    assert len({e.seed for e in errands}) == 1
    assert {(e.votes, e.rollouts) for e in errands} == {(0, 1)}


async def test_a_run_of_no_steps_evaluates_once_and_trains_nothing(ring: Ring) -> None:
    run = await ring.conduct(ring.submit(steps=0))
    assert (run.status, run.step) == ("finished", 0)
    (only,) = ring.store.steps(run.id)
    assert (only.metrics["eval/sampled"], only.metrics["eval/greedy"]) == (1.0, 1.0)
    assert "evaluation" in only.artifacts
    assert {errand.purpose for errand in ring.workers.errands} == {"evaluate"}
    assert versions(ring, run) == [(0, run.policy_version, run.reward_version)]


async def test_a_pool_without_held_out_tasks_is_not_evaluated(ring: Ring) -> None:
    ring.plans.heldout = False
    run = ring.submit()
    await ring.conduct(run)
    assert not any("eval" in name for s in ring.store.steps(run.id) for name in s.metrics)


async def test_a_candidate_is_measured_but_not_trained_on(ring: Ring) -> None:
    ring.plans.proposal = "proposal-1"
    run = ring.submit(steps=1)
    await ring.conduct(run)
    reasons = {row["purpose"]: row["reason"] for row in ring.ledger(run)}
    assert reasons == {"measure_parent": "", "measure_candidate": "proposal awaits its verdict"}
    heard = await ring.adapted()
    assert [(o.purpose, o.proposal_id, o.adapt) for o in heard] == [
        ("measure_parent", "proposal-1", False),
        ("measure_candidate", "proposal-1", False),
    ]
    assert {o.policy_version for o in heard} == {1}, "the version that played, not the new one"


async def test_a_judge_that_is_not_trained_keeps_its_version(ring: Ring) -> None:
    config = parse(CONFIG | {"algorithm": {"preset": "grpo"}, "adaptation": {"controller": "none"}})
    run = ring.store.create(name="r", pool_id="p", config=config.model_dump(mode="json"))
    assert (await ring.conduct(run)).status == "finished"
    assert versions(ring, run) == [(0, 1, 1), (1, 2, 1), (2, 3, 1)]
    assert ring.learners["judges"].batches == []
    assert {e.votes for e in ring.workers.errands} == {0}
    assert await ring.adapted() == []


# ---- stop and resume ----


async def test_a_run_stops_in_the_middle_of_a_step_and_goes_on_where_it_was(ring: Ring) -> None:
    run = ring.submit()
    ring.workers.loses = lambda task: task.group_id.endswith("00002-train-0001")
    async with conducting(ring):
        await until(lambda: any("00002-train-0001" in e.group_id for e in ring.workers.errands))
        assert ring.store.request_stop(run.id).status == "stopping"
        await until(lambda: ring.store.status(run.id) == "stopped")
        assert ring.store.get(run.id).step == 1
        ring.workers.loses = lambda _: False
        ring.store.resume(run.id)
        await until(lambda: ring.store.status(run.id) == "finished")
    assert versions(ring, run) == [(0, 1, 1), (1, 2, 2), (2, 3, 3)]
    assert set(ring.trained().values()) == {1}
    assert set(ring.workers.played.values()) == {1}


async def test_a_run_that_is_stopped_before_the_conductor_takes_it_stays_stopped(
    ring: Ring,
) -> None:
    seen = ring.submit()  # the conductor has read it as queued
    ring.store.request_stop(seen.id)
    await ring.conductor().conduct(seen)
    assert ring.store.status(seen.id) == "stopped"
    assert ring.workers.errands == []


async def test_a_run_can_be_stopped_while_a_room_is_away(ring: Ring) -> None:
    run = ring.submit()
    ring.troubles.plan("weights of acts", UnavailableError("nobody there"), times=10_000)
    async with conducting(ring):
        await until(lambda: ring.store.get(run.id).reason)
        assert ring.store.get(run.id).reason == "waiting: nobody there"
        ring.store.request_stop(run.id)
        await until(lambda: ring.store.status(run.id) == "stopped")


# ---- waiting and failing ----


@pytest.mark.parametrize(
    "place",
    [
        "plan train", "plan evaluate", "weights of acts", "serve judges", "send rollout", "collect",
        "announce batch of acts", "read weights", "add weights", "send adapt", "commit", "emit step",
    ],
)  # fmt: skip
async def test_a_run_waits_for_what_is_away_and_does_nothing_twice(ring: Ring, place: str) -> None:
    run = ring.submit()
    ring.troubles.plan(place, UnavailableError("gone for lunch"), times=3)
    async with conducting(ring):
        await until(lambda: ring.store.status(run.id) in ("finished", "failed"))
    state = ring.store.get(run.id)
    assert (state.status, state.reason) == ("finished", "")
    assert [step for step, _, _ in versions(ring, run)] == [0, 1, 2]
    assert set(ring.trained().values()) == {1}
    assert len(ring.trained()) == 4
    assert set(ring.workers.played.values()) == {1}
    told = [event for event in await events(ring, run) if event == ("run", "running")]
    assert len(told) <= 2, "three refusals in a row are told once"


async def test_a_learner_that_fails_fails_the_run_with_its_words(ring: Ring) -> None:
    run = ring.submit()
    ring.learners["acts"].error = ErrorInfo(kind="trainer", detail="three updates were not finite")
    state = await ring.conduct(run)
    assert (state.status, state.step) == ("failed", 0)
    assert "learner of acts: three updates were not finite" in state.reason
    ring.learners["acts"].error = None
    ring.store.resume(run.id)
    assert (await ring.conduct(run)).status == "finished"
    assert set(ring.trained().values()) == {1}


async def test_a_step_that_is_not_played_in_time_fails_the_run_and_names_what_is_missing(
    ring: Ring,
) -> None:
    ring.workers.loses = lambda task: task.purpose == "train"
    run = ring.submit(step_deadline_s=3.0)
    state = await ring.conduct(run)
    assert state.status == "failed"
    assert f"{run.id}-00001-train-0000" in state.reason
    assert "run.step_deadline_s" in state.reason


async def test_a_learner_that_does_not_answer_in_time_fails_the_run(ring: Ring) -> None:
    run = ring.submit(step_deadline_s=0.3, eval_every=0)
    ring.learners["judges"].silent = True
    state = await ring.conduct(run)
    assert state.status == "failed"
    assert "no weights from the learner of judges" in state.reason


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (StorageError("cannot write: the disk is full"), "storage: cannot write: the disk is full"),
        (ValueError("a bug"), "internal: ValueError: a bug"),
    ],
)
async def test_any_other_error_fails_the_run_with_the_reason_and_spares_the_next(
    ring: Ring, error: Exception, reason: str
) -> None:
    first, second = ring.submit(), ring.submit()
    ring.troubles.plan("write", error)
    async with conducting(ring):
        await until(lambda: ring.store.status(second.id) == "finished")
    assert (ring.store.get(first.id).status, ring.store.get(first.id).reason) == ("failed", reason)


async def test_the_conductor_outlives_errors_of_its_own_books(ring: Ring) -> None:
    run = ring.submit()
    ring.troubles.plan("take", StorageError("the database is read-only"))
    ring.troubles.plan("set finished", ValueError("a bug"))
    ring.troubles.plan("set failed", StorageError("the disk is full"))
    async with conducting(ring):
        await until(lambda: ring.store.status(run.id) == "finished")


async def test_leftovers_that_cannot_be_deleted_do_not_cost_the_run(ring: Ring) -> None:
    ring.troubles.plan("forget", StorageError("refused"))
    assert (await ring.conduct(ring.submit())).status == "finished"


async def test_a_run_without_a_model_folder_fails_with_the_field(ring: Ring) -> None:
    config = parse(CONFIG | {"models": {"acts": {"path": "/m"}}}).model_dump(mode="json")
    run = ring.store.create(name="r", pool_id="p", config=config)
    state = await ring.conduct(run)
    assert (state.status, state.reason.split(":")[1]) == ("failed", " models.judges.path")


# ---- whose weights ----


async def test_a_run_goes_on_with_its_own_weights_after_another_run_has_served(ring: Ring) -> None:
    first = ring.submit(steps=2)
    ring.workers.loses = lambda task: task.group_id.endswith("00002-train-0000")
    async with conducting(ring):
        await until(lambda: any("00002-train-0000" in e.group_id for e in ring.workers.errands))
        ring.store.request_stop(first.id)
        await until(lambda: ring.store.status(first.id) == "stopped")
    ring.workers.loses = lambda _: False
    second = ring.submit(steps=2)
    assert (await ring.conduct(second)).policy_version == 5
    ring.store.resume(first.id)
    assert (await ring.conduct(first)).status == "finished"
    assert versions(ring, first)[-1] == (2, 7, 7)
    own = ring.learners["acts"].published[first.id, 2].uri
    assert (6, own) in ring.rooms["acts"].served, "the weights of its step 1, under a new number"
    last = ring.learners["acts"].batches[-1]
    assert (last.version, last.settings["base_version"]) == (6, 1)
    assert last.settings["folder_version"] == 2, "what version 6 serves was written as version 2"
    assert {row["reason"] for row in ring.ledger(first)} == {""}


async def test_another_runs_weights_of_the_same_number_are_not_taken_for_its_own(
    ring: Ring,
) -> None:
    first = ring.submit(steps=2, eval_every=0)
    ring.workers.loses = lambda task: "00002" in task.group_id
    async with conducting(ring):
        await until(lambda: any("00002" in e.group_id for e in ring.workers.errands))
        ring.store.request_stop(first.id)
        await until(lambda: ring.store.status(first.id) == "stopped")
    ring.workers.loses = lambda _: False
    for room in ring.rooms.values():
        room.restart()
    second = await ring.conduct(ring.submit(steps=1, eval_every=0))
    assert second.policy_version == ring.store.get(first.id).policy_version == 2
    ring.store.resume(first.id)
    await ring.conduct(first)
    assert (3, ring.learners["acts"].published[first.id, 2].uri) in ring.rooms["acts"].served
    assert versions(ring, first)[-1] == (2, 4, 4)


async def test_an_untrained_run_takes_a_new_base_after_another_run_has_served(ring: Ring) -> None:
    first = ring.submit(steps=1)
    ring.troubles.plan("plan train", StorageError("no"))
    assert (await ring.conduct(first)).step == 0
    await ring.conduct(ring.submit(steps=1))
    ring.store.resume(first.id)
    await ring.conduct(first)
    assert ring.learners["acts"].batches[-1].settings["base_version"] == 4
    assert versions(ring, first) == [(0, 1, 1), (1, 5, 5)]


async def test_engines_that_lost_the_weights_in_a_step_have_them_again_in_the_next(
    ring: Ring,
) -> None:
    run = ring.submit(steps=2, eval_every=0)
    room = ring.rooms["acts"]
    ring.plans.before = lambda step: room.restart() if step == 1 else None
    await ring.conduct(run)
    by_step = {row["step"]: row["reason"] for row in ring.ledger(run)}
    assert by_step == {1: "stale weight version", 2: ""}
    steps = {s.step: s.metrics for s in ring.store.steps(run.id)}
    assert (steps[1]["replayed"], steps[2]["replayed"]) == (4.0, 0.0)
    assert versions(ring, run)[-1][1] == 2, "one of two steps has trained the policy"


async def test_an_answer_to_an_older_batch_of_the_same_step_is_not_taken(ring: Ring) -> None:
    old = WeightsReady(run_id="r", role="acts", step=1, version=2, uri="/old", digest="")
    answers = [old, old.model_copy(update={"error": ErrorInfo(kind="trainer", detail="old")})]

    async def check() -> None:
        if answers:
            await ring.wire.announce_weights(answers.pop())
            if not answers:
                ring.start()

    await ring.stop()
    publisher = Publisher(ring.wire, ring.rooms, check=check)
    batch = TrainBatch(
        batch_id="b", run_id="r", role="acts", step=1, version=21, uri=ring.artifacts.write("x", b""),
        num_rows=1, num_tokens=1, settings={},
    )  # fmt: skip
    published = await publisher.train([batch], deadline_s=10)
    assert published["acts"].ready.version == 22
