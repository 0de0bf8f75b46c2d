"""Runs from queue to end: what they record, how they stop, wait and fail, and whose weights they train."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from prometheus_client import REGISTRY
from sqlalchemy import select

from services.trainer.loop.learners import Learners
from services.trainer.loop.untrained import untrained, untrained_judge
from tests.batches import train_batch
from tests.service.fake_loop import CONFIG, Loop, until
from tests.service.fragile import Killed
from triforge.algorithms.theory import wilson
from triforge.broker.protocol import key
from triforge.config import parse
from triforge.errors import PolicyError, StorageError, UnavailableError
from triforge.event_loop import end_task
from triforge.store.tables import MeasurementRow
from triforge.types import ErrorInfo, GroupTask, RunState, TaskOutcome, WeightsReady, WeightVersion


@contextlib.asynccontextmanager
async def conducting(loop: Loop) -> AsyncIterator[None]:
    """An orchestrator at work in the background."""
    work = asyncio.create_task(loop.orchestrator().run_forever())
    try:
        yield
    finally:
        await end_task(work)


def versions(loop: Loop, run: RunState) -> list[tuple[int, int, int]]:
    return [(s.step, s.policy_version, s.reward_version) for s in loop.store.steps(run.id)]


async def events(loop: Loop, run: RunState) -> list[tuple[str, Any]]:
    found = await loop.broker.read_events("0", block_s=0.01, run_id=run.id)
    return [
        (event.kind, event.data.get("status") if event.kind == "run" else event.step)
        for _, event in found
        if event.kind != "group"
    ]


# ---- a run ----


async def test_a_run_commits_every_step_with_its_versions_and_measures(loop: Loop) -> None:
    run = loop.submit(seed=9)
    assert (await loop.conduct(run)).status == "finished"
    assert versions(loop, run) == [(0, 1, 1), (1, 2, 2), (2, 3, 3)]
    first, second, third = (step.metrics for step in loop.store.steps(run.id))
    assert (first["eval/sampled"], first["eval/greedy"]) == (1.0, 1.0)
    assert "eval/sampled" not in second
    assert third["eval/sampled_episodes"] == 1.0
    assert (third["eval/sampled_gain"], third["eval/sampled_gain_pairs"]) == (0.0, 1.0)
    assert "eval/sampled_gain" not in first
    assert (second["success"], second["judge/votes"], second["rows/policy"]) == (0.5, 8.0, 4.0)
    assert (second["policy/loss"], second["reward/loss"]) == (0.5, 0.5)
    assert (second["groups/dead"], second["groups/dead_share"]) == (0.0, 0.0)
    assert not any("broken" in name for name in second), "a metric that is no number is left out"
    assert await events(loop, run) == [
        ("run", "running"), ("evaluation", 0), ("step", 0), ("step", 1), ("evaluation", 2),
        ("step", 2), ("run", "finished"),
    ]  # fmt: skip
    assert await loop.keys() == set()
    assert not any(loop.artifacts.exists(b.uri) for b in loop.learners["policy"].batches)
    expect_batches(loop, run)
    jobs = [e for e in loop.workers.jobs if e.purpose == "evaluate"]
    assert sorted((e.step, e.sampling.temperature) for e in jobs) == [
        (0, 0.0), (0, 1.0), (2, 0.0), (2, 1.0),
    ]  # fmt: skip
    assert len({e.seed for e in jobs}) == 1, "every evaluation plays the same seeds"
    assert {(e.votes, e.rollouts) for e in jobs} == {(0, 1)}


async def test_versions_of_the_best_evaluation_are_pinned_and_some_have_checkpoints(
    loop: Loop,
) -> None:
    loop.workers.alike = lambda task: task.purpose == "evaluate" and task.step != 2
    await loop.conduct(loop.submit(steps=5, eval_every=1, checkpoint_every=2))
    batches = loop.learners["policy"].batches
    assert [b.pinned for b in batches] == [(), (2,), (3,), (3,), (3,)]
    assert [b.checkpoint for b in batches] == ["none", "after", "none", "after", "after"]


def expect_batches(loop: Loop, run: RunState) -> None:
    """A batch carries what the learner has to know."""
    [first, second] = loop.learners["reward"].batches
    assert (first.step, first.version, second.step, second.version) == (1, 1, 2, 2)
    initial = WeightVersion(number=1, folder="/models/reward")
    assert (first.initial, first.start) == (initial, initial)
    assert second.initial == initial
    assert (second.start.number, Path(second.start.folder).name) == (2, "v000002")
    assert (first.seed, first.temperature) == (9, 1.0)
    assert (first.num_rows, first.batch_id) == (8, f"{run.id}-00001-reward")


async def test_a_step_says_what_the_votes_were_worth_and_what_weight_they_had(loop: Loop) -> None:
    algorithm = CONFIG["algorithm"]["overrides"] | {"vote_weight": "trust"}
    run = loop.submit_with({"algorithm": {"overrides": algorithm}})
    await loop.conduct(run)
    _, _, last = (step.metrics for step in loop.store.steps(run.id))
    # Every rollout gets one +1 and one -1, so the votes say nothing of the outcome.
    assert (last["theory/p_plus"], last["theory/mu_within"], last["theory/groups"]) == (0.5, 1, 2)
    assert (last["votes/recent/groups"], last["votes/trust"], last["votes/weight"]) == (4, 0, 0)
    assert [step for step, _ in loop.store.run_state(run.id)["votes"]] == [1, 2]
    labels = {"pool": "pool", "measure": "theory/mu_within"}
    assert REGISTRY.get_sample_value("triforge_trainer_step_measure", labels) == 1.0


async def test_scores_without_votes_have_no_measures_of_votes(loop: Loop) -> None:
    goals = {"positive": ["a green box"], "negative": ["a red box"], "encoder": "colours"}
    scores = {"reward": {"kind": "vlm_rl"}, "methods": {"vlm_rl": goals}, "algorithm": {"preset": "vlm_rl"}}  # fmt: skip
    run = loop.submit_with(scores | {"adaptation": {"controller": "none"}})
    assert (await loop.conduct(run)).status == "finished"
    found = loop.store.steps(run.id)[-1].metrics
    assert not {"judge/alarm", "votes/trust", "votes/weight", "theory/groups"} & found.keys()


async def test_a_run_on_scores_without_a_threshold_trains_where_nothing_needs_success(
    loop: Loop,
) -> None:
    loop.workers.scores = (0.2, 0.7, 0.7, 1.0)
    alone = {"algorithm": {"preset": "rloo"}, "adaptation": {"controller": "none"}}
    run = loop.submit_with({"env_adapter": {"rollouts": 4}} | alone)
    assert (await loop.conduct(run)).status == "finished"
    _, _, last = (step.metrics for step in loop.store.steps(run.id))
    assert (last["score"], last["eval/sampled_score"]) == (pytest.approx(0.65), 0.2)
    assert (last["rows/policy"], last["all_same"]) == (8.0, 0.0)
    assert not {"success", "eval/sampled"} & last.keys()
    rows = [row for row in loop.records(run) if row["step_index"] == 0]
    assert [(r["outcome"], r["score"], r["measured"]) for r in rows[:2]] == [
        (None, 0.2, 4),
        (None, 0.7, 4),
    ]
    assert [r["advantage"] for r in rows[:4]] == pytest.approx([-0.6, 1 / 15, 1 / 15, 7 / 15])
    refused = loop.submit()
    assert "train_reward_model = true" in (await loop.conduct(refused)).reason


async def test_a_run_of_no_steps_evaluates_once_and_trains_nothing(loop: Loop) -> None:
    run = await loop.conduct(loop.submit(steps=0))
    assert (run.status, run.step) == ("finished", 0)
    (only,) = loop.store.steps(run.id)
    assert (only.metrics["eval/sampled"], only.metrics["eval/greedy"]) == (1.0, 1.0)
    assert "evaluation" in only.artifacts
    assert {job.purpose for job in loop.workers.jobs} == {"evaluate"}
    assert versions(loop, run) == [(0, run.policy_version, run.reward_version)]


async def test_held_out_tasks_are_sampled_as_often_as_configured_and_played_greedily_once(
    loop: Loop,
) -> None:
    run = await loop.conduct(loop.submit(steps=0, eval_rollouts=3))
    (only,) = loop.store.steps(run.id)
    episodes = [only.metrics[f"eval/{mode}_episodes"] for mode in ("sampled", "greedy")]
    assert episodes == [3.0, 1.0]
    # three episodes of one task tell as much as one
    low, _ = wilson(only.metrics["eval/sampled"], 1)
    assert only.metrics["eval/sampled/low"] == pytest.approx(low)


async def test_a_run_whose_rows_are_all_dropped_says_so_at_each_step_and_at_its_end(
    loop: Loop,
) -> None:
    dropped = {"preset": "grpo", "overrides": {"policy_band": [0.9, 1.0]}}
    run = await loop.conduct(loop.submit_with({"algorithm": dropped}))
    assert (run.status, run.step, run.policy_version) == ("finished", 2, 1)
    parts = run.reason.split("; ")
    assert parts[0] == "finished without training: trained on 0 of 4 groups (success 0.50)"
    assert parts[1] == "16 of 16 answers left out: outside policy band"
    assert parts[2].startswith("to change: widen algorithm.overrides.policy_band")
    assert parts[3] == "a sample answer: 'r0'"
    found = await loop.broker.read_events("0", block_s=0.01, run_id=run.id)
    notes = {e.step: e.data.get("note", "") for _, e in found if e.kind == "step"}
    assert notes[0] == ""
    assert [notes[n].split("; ")[0] for n in (1, 2)] == [
        "trained on 0 of 2 groups (success 0.50)"
    ] * 2


def test_what_was_trained_on_now_and_then_is_no_idle_run() -> None:
    idle = {"rows/policy": 0.0, "rows/reward": 3.0, "groups": 2.0, "steps/zero spread": 5.0}
    assert untrained([idle]).startswith("the policy trained on 0 of 2 groups")
    invalid = idle | {"valid_actions": 0.1}
    assert "admissible_only = true" in untrained([invalid])
    assert "admissible_only" not in untrained([invalid], admissible_only=True), "it was taken"
    assert "admissible_only" not in untrained([idle | {"valid_actions": 0.9}])
    assert untrained([idle, idle | {"rows/policy": 1.0}]) == ""
    assert untrained([]) == ""


def test_the_note_of_an_untrained_judge_says_why_unless_it_is_frozen() -> None:
    alike = {"rows/reward": 0.0, "votes/zero spread": 96.0, "votes/outside reward band": 8.0}
    assert untrained_judge([alike]).startswith("the judge trained on no vote; 96 votes left out: zero spread")  # fmt: skip
    assert "reward_band = 'none'" in untrained_judge([alike | {"votes/outside reward band": 97.0}])
    assert untrained_judge([alike | {"rows/reward": 2.0}]) == ""
    assert "page `labels`" in untrained_judge([alike | {"votes/trained_share": 0.5}])
    assert untrained_judge([{"votes/reward model not trained": 9.0}]) == ""
    assert untrained_judge([]) == ""


async def test_a_pool_without_held_out_tasks_is_not_evaluated(loop: Loop) -> None:
    loop.plans.heldout = False
    run = loop.submit()
    await loop.conduct(run)
    assert not any("eval" in name for s in loop.store.steps(run.id) for name in s.metrics)


@pytest.mark.parametrize(("pairs", "reason"), [("both", ""), ("none", "measures a rewrite")])
async def test_a_pair_is_measured_with_the_groups_of_a_step_and_trained_on_by_its_option(
    loop: Loop, pairs: str, reason: str
) -> None:
    loop.plans.proposal = "proposal-1"
    overrides = CONFIG["algorithm"]["overrides"] | {"train_on_pairs": pairs}
    changes = {"algorithm": {"overrides": overrides}, "run": CONFIG["run"] | {"steps": 1}}
    run = loop.submit_with(changes)
    await loop.conduct(run)
    reasons = {row["purpose"]: row["reason"] for row in loop.records(run)}
    assert reasons == {"train": "", "measure_parent": reason, "measure_candidate": reason}
    assert len({row["group_id"] for row in loop.records(run)}) == 4
    heard = await loop.adapted()
    # the groups end in any order
    assert sorted((o.purpose, o.proposal_id or "") for o in heard) == [
        ("measure_candidate", "proposal-1"),
        ("measure_parent", "proposal-1"),
        ("train", ""),
        ("train", ""),
    ]
    assert {o.policy_version for o in heard} == {1}, "the version that played, not the new one"


async def test_a_run_with_votes_fails_where_there_is_no_reward_model(loop: Loop) -> None:
    loop.settings = loop.settings.model_copy(update={"reward_model_url": "none"})
    run = await loop.conduct(loop.submit())
    assert run.status == "failed"
    assert "this deployment has no reward model" in run.reason


async def test_a_run_without_votes_needs_no_reward_model(loop: Loop) -> None:
    loop.settings = loop.settings.model_copy(update={"reward_model_url": "none"})
    run = loop.submit_with({"algorithm": {"preset": "grpo"}, "adaptation": {"controller": "none"}})
    assert (await loop.conduct(run)).status == "finished"
    assert versions(loop, run) == [(0, 1, 0), (1, 2, 0), (2, 3, 0)]
    assert loop.learners["reward"].batches == []
    assert {e.votes for e in loop.workers.jobs} == {0}
    assert await loop.adapted() == [], "no adapt worker would count them"
    with loop.database.read() as session:
        counted = {row.group_id: row for row in session.scalars(select(MeasurementRow))}
    assert counted.keys() == {
        job.group_id for job in loop.workers.jobs if "-train-" in job.group_id
    }
    assert all(row.score == row.successes / row.measured for row in counted.values())
    columns = MeasurementRow.__table__.columns.keys()
    again = [
        TaskOutcome(pool_id="pool", **{n: getattr(row, n) for n in columns})
        for row in counted.values()
    ]
    loop.store.measure(again)  # as after a crash: nothing is counted twice, and nothing fails


# ---- stop and resume ----


async def test_a_run_stops_in_the_middle_of_a_step_and_goes_on_where_it_was(loop: Loop) -> None:
    run = loop.submit()
    loop.workers.loses = lambda task: task.group_id.endswith("00002-train-0001")
    async with conducting(loop):
        await until(lambda: any("00002-train-0001" in e.group_id for e in loop.workers.jobs))
        assert loop.store.request_stop(run.id).status == "stopping"
        await until(lambda: loop.store.status(run.id) == "stopped")
        assert loop.store.get(run.id).step == 1
        loop.workers.loses = lambda _: False
        loop.store.resume(run.id)
        await until(lambda: loop.store.status(run.id) == "finished")
    assert versions(loop, run) == [(0, 1, 1), (1, 2, 2), (2, 3, 3)]
    assert set(loop.trained().values()) == {1}
    assert set(loop.workers.played.values()) == {1}


async def test_a_run_that_is_stopped_before_the_orchestrator_takes_it_stays_stopped(
    loop: Loop,
) -> None:
    seen = loop.submit()  # the orchestrator has read it as queued
    loop.store.request_stop(seen.id)
    await loop.orchestrator().work_on(seen)
    assert loop.store.status(seen.id) == "stopped"
    assert loop.workers.jobs == []


async def test_a_run_can_be_stopped_while_a_service_is_away(loop: Loop) -> None:
    run = loop.submit()
    loop.troubles.plan(
        "weights of policy", UnavailableError("service away", retry_after_s=None), times=10_000
    )
    async with conducting(loop):
        await until(lambda: loop.store.get(run.id).reason)
        assert loop.store.get(run.id).reason == "waiting: service away"
        loop.store.request_stop(run.id)
        await until(lambda: loop.store.status(run.id) == "stopped")


# ---- waiting and failing ----


@pytest.mark.parametrize(
    "place",
    [
        "plan train", "serve reward", "send rollout", "collect", "read weights", "commit", "emit step",
    ],
)  # fmt: skip
async def test_a_run_waits_for_what_is_away_and_does_nothing_twice(loop: Loop, place: str) -> None:
    run = loop.submit()
    loop.troubles.plan(place, UnavailableError("gone for lunch", retry_after_s=None), times=3)
    async with conducting(loop):
        await until(lambda: loop.store.status(run.id) in ("finished", "failed"))
    state = loop.store.get(run.id)
    assert (state.status, state.reason) == ("finished", "")
    assert [step for step, _, _ in versions(loop, run)] == [0, 1, 2]
    assert set(loop.trained().values()) == {1}
    assert len(loop.trained()) == 4
    assert set(loop.workers.played.values()) == {1}
    announced = [event for event in await events(loop, run) if event == ("run", "running")]
    assert len(announced) <= 2, "three refusals in a row are one event"


async def test_a_learner_that_fails_fails_the_run_with_its_words(loop: Loop) -> None:
    run = loop.submit()
    loop.learners["policy"].error = ErrorInfo(
        kind="trainer", detail="three updates were not finite"
    )
    state = await loop.conduct(run)
    assert (state.status, state.step) == ("failed", 0)
    assert "learner of policy: three updates were not finite" in state.reason
    loop.learners["policy"].error = None
    loop.store.resume(run.id)
    assert (await loop.conduct(run)).status == "finished"
    assert set(loop.trained().values()) == {1}


async def test_a_step_that_is_not_played_in_time_fails_the_run_and_names_what_is_missing(
    loop: Loop,
) -> None:
    loop.workers.loses = lambda task: task.purpose == "train"
    run = loop.submit(step_deadline_s=0.3, eval_every=0)
    state = await loop.conduct(run)
    assert state.status == "failed"
    assert f"{run.id}-00001-train-0000" in state.reason
    assert "run.step_deadline_s" in state.reason


async def test_a_learner_that_does_not_answer_in_time_fails_the_run(loop: Loop) -> None:
    run = loop.submit(step_deadline_s=0.3, eval_every=0)
    loop.learners["reward"].silent = True
    state = await loop.conduct(run)
    assert state.status == "failed"
    assert "no weights from the learner of reward" in state.reason


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (StorageError("cannot write: the disk is full"), "storage: cannot write: the disk is full"),
        (ValueError("a bug"), "internal: ValueError: a bug"),
    ],
)
async def test_any_other_error_fails_the_run_with_the_reason_and_spares_the_next(
    loop: Loop, error: Exception, reason: str
) -> None:
    first, second = loop.submit(), loop.submit()
    loop.troubles.plan("write", error)
    async with conducting(loop):
        await until(lambda: loop.store.status(second.id) == "finished")
    assert (loop.store.get(first.id).status, loop.store.get(first.id).reason) == ("failed", reason)


async def test_the_orchestrator_outlives_errors_of_its_own_books(loop: Loop) -> None:
    run = loop.submit()
    loop.troubles.plan("take", StorageError("the database is read-only"))
    loop.troubles.plan("set finished", ValueError("a bug"))
    loop.troubles.plan("set failed", StorageError("the disk is full"))
    async with conducting(loop):
        await until(lambda: loop.store.status(run.id) == "finished")


async def test_leftovers_that_cannot_be_deleted_do_not_cost_the_run(loop: Loop) -> None:
    loop.troubles.plan("forget", StorageError("refused"))
    assert (await loop.conduct(loop.submit())).status == "finished"


async def test_a_run_without_a_model_folder_fails_with_the_field(loop: Loop) -> None:
    state = await loop.conduct(loop.submit_with({"models": {"policy": {"path": "/m"}}}))
    assert (state.status, state.reason.split(":")[1]) == ("failed", " models.reward.path")


# ---- whose weights ----


async def test_a_run_goes_on_with_its_own_weights_after_another_run_has_served(loop: Loop) -> None:
    first = loop.submit(steps=2)
    loop.workers.loses = lambda task: task.group_id.endswith("00002-train-0000")
    async with conducting(loop):
        await until(lambda: any("00002-train-0000" in e.group_id for e in loop.workers.jobs))
        loop.store.request_stop(first.id)
        await until(lambda: loop.store.status(first.id) == "stopped")
    loop.workers.loses = lambda _: False
    second = loop.submit(steps=2)
    assert (await loop.conduct(second)).policy_version == 5
    loop.store.resume(first.id)
    assert (await loop.conduct(first)).status == "finished"
    assert versions(loop, first)[-1] == (2, 7, 7)
    own = loop.learners["policy"].published[first.id, 2].uri
    assert (6, own) in loop.services["policy"].served, (
        "the weights of its step 1, under a new number"
    )
    last = loop.learners["policy"].batches[-1]
    assert (last.version, last.initial.number) == (6, 1)
    assert Path(last.start.folder).name == "v000002", (
        "what version 6 serves was written as version 2"
    )
    assert {row["reason"] for row in loop.records(first)} == {""}


async def test_a_run_whose_weights_were_deleted_names_them_and_the_way_back(loop: Loop) -> None:
    run = loop.submit(steps=2, eval_every=0)
    loop.workers.loses = lambda task: "00002" in task.group_id
    async with conducting(loop):
        await until(lambda: any("00002" in e.group_id for e in loop.workers.jobs))
        loop.store.request_stop(run.id)
        await until(lambda: loop.store.status(run.id) == "stopped")
    loop.workers.loses = lambda _: False
    service, lost = loop.services["policy"], loop.learners["policy"].published[run.id, 2].uri
    service.restart()
    service.lost = {lost}
    loop.store.resume(run.id)
    state = await loop.conduct(run)
    assert state.status == "failed"
    assert lost in state.reason
    assert f"triforge run rollback {run.id} --role policy" in state.reason


async def test_another_runs_weights_of_the_same_number_are_not_taken_for_its_own(
    loop: Loop,
) -> None:
    first = loop.submit(steps=2, eval_every=0)
    loop.workers.loses = lambda task: "00002" in task.group_id
    async with conducting(loop):
        await until(lambda: any("00002" in e.group_id for e in loop.workers.jobs))
        loop.store.request_stop(first.id)
        await until(lambda: loop.store.status(first.id) == "stopped")
    loop.workers.loses = lambda _: False
    for service in loop.services.values():
        service.restart()
    second = await loop.conduct(loop.submit(steps=1, eval_every=0))
    assert second.policy_version == loop.store.get(first.id).policy_version == 2
    loop.store.resume(first.id)
    await loop.conduct(first)
    assert (3, loop.learners["policy"].published[first.id, 2].uri) in loop.services["policy"].served
    assert versions(loop, first)[-1] == (2, 4, 4)


async def test_an_untrained_run_takes_a_new_base_after_another_run_has_served(loop: Loop) -> None:
    first = loop.submit(steps=1)
    loop.troubles.plan("plan train", StorageError("no"))
    assert (await loop.conduct(first)).step == 0
    await loop.conduct(loop.submit(steps=1))
    loop.store.resume(first.id)
    await loop.conduct(first)
    assert loop.learners["policy"].batches[-1].initial.number == 4
    assert versions(loop, first) == [(0, 1, 1), (1, 5, 5)]


async def test_engines_that_lost_the_weights_in_a_step_have_them_again_in_the_next(
    loop: Loop,
) -> None:
    run = loop.submit(steps=2, eval_every=0)
    service = loop.services["policy"]
    loop.plans.before = lambda step: service.restart() if step == 1 else None
    await loop.conduct(run)
    by_step = {row["step"]: row["reason"] for row in loop.records(run)}
    assert by_step == {1: "stale weight version", 2: ""}
    steps = {s.step: s.metrics for s in loop.store.steps(run.id)}
    assert (steps[1]["replayed"], steps[2]["replayed"]) == (4.0, 0.0)
    assert versions(loop, run)[-1][1] == 2, "one of two steps has trained the policy"


async def test_a_run_never_takes_over_weights_that_another_client_published_in_its_step(
    loop: Loop,
) -> None:
    run = loop.submit(steps=2, eval_every=0)
    service = loop.services["policy"]

    def meddle(step: int) -> None:
        if step == 1:
            service.version, service.uri = 50, "/models/foreign"

    loop.plans.before = meddle
    state = await loop.conduct(run)
    assert (state.status, state.reason) == ("finished", "")
    found = [(s.step, s.policy_version) for s in loop.store.steps(run.id)]
    assert found == [(0, 1), (1, 1), (2, 52)]
    assert service.served[-2:] == [
        (51, "/models/policy"),
        (52, loop.artifacts.uri(f"weights/{run.id}/policy/v000052")),
    ]
    by_step = {row["step"]: row["reason"] for row in loop.records(run)}
    assert by_step == {1: "stale weight version", 2: ""}


async def test_an_answer_to_an_older_batch_of_the_same_step_is_not_taken(loop: Loop) -> None:
    old = WeightsReady(run_id="r", role="policy", step=1, version=2, uri="/old", digest="")
    answers = [old, old.model_copy(update={"error": ErrorInfo(kind="trainer", detail="old")})]

    async def check() -> None:
        if answers:
            await loop.broker.announce(answers.pop())
            if not answers:
                loop.start()

    await loop.stop()
    parts: Any = SimpleNamespace(broker=loop.broker)
    learners = Learners(parts, "r", parse(CONFIG), {}, check)
    batch = train_batch("m", batch_id="b", version=21, uri=loop.artifacts.write("x", b""))
    trained = await learners.announce([batch])
    assert trained["policy"].ready.version == 22


async def test_on_one_card_a_learner_trains_alone_and_engines_serve_before_anything_is_played(
    loop: Loop,
) -> None:
    seen: list[tuple[str, int]] = []

    def watch(role: str) -> Callable[[], Awaitable[None]]:
        async def before() -> None:
            seen.append((role, sum(service.released for service in loop.services.values())))
            await asyncio.sleep(0.05)  # another learner would begin meanwhile
            seen.append((role, sum(service.released for service in loop.services.values())))

        return before

    for role, learner in loop.learners.items():
        learner.before = watch(role)
    run = await loop.conduct(loop.submit(colocate=True))
    assert (run.status, versions(loop, run)[-1]) == ("finished", (2, 3, 3))
    assert seen == [(role, 2) for role in ("policy", "policy", "reward", "reward")] * 2
    assert [service.memory for service in loop.services.values()] == [[("release", 1), ("release", 2)]] * 2  # fmt: skip
    assert not any(service.released for service in loop.services.values())


@pytest.mark.parametrize("why", ["learner", "service", "killed", "killed and stopped"])
async def test_engines_have_their_memory_again_whatever_becomes_of_the_step(
    loop: Loop, why: str
) -> None:
    run = loop.submit(colocate=True)
    if why == "learner":
        loop.learners["reward"].error = ErrorInfo(kind="trainer", detail="too little memory")
        assert (await loop.conduct(run)).reason.endswith("too little memory")
    elif why == "service":
        loop.troubles.plan("released reward", PolicyError("start it with --enable-memory-saver"))
        assert "--enable-memory-saver" in (await loop.conduct(run)).reason
    else:
        loop.troubles.plan("released reward", Killed("here"))
        with pytest.raises(Killed):
            await loop.conduct(run)
        loop.services["policy"].released = True  # its orchestrator was killed
        if why.endswith("stopped"):
            loop.store.set_status(run.id, "stopping")
        assert (await loop.conduct(run)).status in ("finished", "stopped")
    assert not any(service.released for service in loop.services.values())


# ---- jobs of an ended run, and the progress of a step ----


async def test_workers_hear_that_a_run_has_failed_and_that_it_goes_on(
    loop: Loop, redis_url: str
) -> None:
    run = loop.submit()
    loop.learners["policy"].error = ErrorInfo(kind="trainer", detail="no")
    assert (await loop.conduct(run)).status == "failed"
    assert await loop.broker.exists(key("ended", run.id))
    marked: list[int] = []

    def loses(_: GroupTask) -> bool:
        with redis.Redis.from_url(redis_url) as client:
            marked.append(int(client.exists(f"tf:ended:{run.id}")))
        return False

    loop.workers.loses = loses
    loop.learners["policy"].error = None
    loop.store.resume(run.id)
    assert (await loop.conduct(run)).status == "finished"
    assert set(marked) == {0}
    assert await loop.broker.exists(key("ended", run.id)), (
        "duplicates of a finished run are dropped as well"
    )


async def test_people_hear_of_every_group_as_it_lands(loop: Loop) -> None:
    run = loop.submit(steps=1, eval_every=0)
    assert (await loop.conduct(run)).status == "finished"
    heard = await loop.broker.read_events("0", block_s=0.01, run_id=run.id)
    group = {
        "purpose": "train",
        "successes": 1,
        "score": 0.5,
        "measured": 2,
        "total": 2,
        "failures": {},
    }
    assert [(e.step, e.data) for _, e in heard if e.kind == "group"] == [
        (1, group | {"done": n}) for n in (1, 2)
    ]


async def test_a_run_goes_on_although_its_events_cannot_be_sent(loop: Loop) -> None:
    loop.troubles.plan("emit group", StorageError("the server is out of memory"), times=100)
    run = loop.submit(steps=1)
    assert (await loop.conduct(run)).status == "finished"
    assert set(loop.workers.played.values()) == {1}
    assert "emit group" in loop.troubles.visited
