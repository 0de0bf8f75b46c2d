"""AT-GRPO on two agents with one table of logits: it learns what comparing whole trajectories does not, of equal samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from environments.plan_path.family import FAMILY
from services.trainer.credit.options import Limits, SampleOptions
from services.trainer.credit.samples import build_samples
from services.trainer.replay.recorded_groups import groups_of
from tests.unit.methods.at_grpo.softmax import Table
from triforge.algorithms.algorithm import Algorithm, resolve
from triforge.config import EnvAdapterSection, parse
from triforge.rollout.episode import run_group
from triforge.rollout.protocols import Generate
from triforge.types import GroupTask, JudgedGroup, Player, Sampling, Task

WORDS = ("north", "east", "south", "west", "up", "right", "down", "left")
EVERYTHING = Limits(max_tokens=1000, max_rows=0, response=1)
PRESETS: dict[str, Algorithm] = {
    "at_grpo": resolve("at_grpo"),
    "group": resolve("grpo", {"kl_beta": 0.0, "aggregation": "token_mean"}),
}
RATE = 0.3


def tasks() -> list[Task]:
    """Three grids of 3 by 3."""
    drafts = [
        FAMILY.validate(p)
        for p in FAMILY.generate(count=3, seed=5, options={"size": 3, "slack": 1})
    ]
    return [
        Task(id=f"t{n}", pool_id="p", slot=f"t{n}", family="plan_path", instruction=d.instruction, params=d.params)
        for n, d in enumerate(drafts)
    ]  # fmt: skip


async def play(policy: Generate, strategy: str, seed: int, **how: Any) -> list[JudgedGroup]:
    """Return a group of each grid."""
    found = []
    for task in tasks():
        played_so = EnvAdapterSection(strategy=strategy, max_steps=20)
        asked = GroupTask(
            group_id=f"{task.id}-{seed}", run_id="toy", step=0, task_id=task.id, seed=seed, rollouts=4,
            env_adapter=played_so, **{"purpose": "train", "sampling": Sampling(max_new_tokens=4)} | how,
        )  # fmt: skip
        played = await run_group(lambda: FAMILY.make({}), policy, task, asked)
        found.append(JudgedGroup(played=played, votes=(None,) * 4))
    return found


async def trained(strategy: str, samples: int) -> float:
    """Return the success of a table that plays both agents after it was trained on so many responses."""
    table, seen, seed = Table(WORDS), 0, 0
    while seen < samples:
        seed += 1
        found = build_samples(await play(table, strategy, seed), options(PRESETS[strategy]))
        table.learn(found.rows["policy"], rate=RATE)
        seen += len(found.records)
    return await success(table)


async def success(policy: Generate) -> float:
    """Return the success of 48 episodes that train nothing."""
    found = [
        g for seed in range(4) for g in await play(policy, "group", 1000 + seed, purpose="evaluate")
    ]
    values = [t.outcome.value for g in found for t in g.played.trajectories]
    return values.count(1) / len(values)


def options(algorithm: Algorithm) -> SampleOptions:
    """Return the options of a run without limits."""
    return SampleOptions(
        algorithm=algorithm, players={"policy": (1, EVERYTHING)}, judging={"reward": (1, EVERYTHING)},
        seed=1,
    )  # fmt: skip


async def test_candidates_of_one_state_teach_two_agents_better_than_whole_trajectories() -> None:
    assert await success(Table(WORDS)) < 0.2
    tree, naive = [await trained(strategy, 1_000) for strategy in ("at_grpo", "group")]
    assert tree >= 0.9
    assert naive < tree - 0.2


async def test_every_candidate_is_on_record_and_those_that_differ_are_trained_on() -> None:
    groups = await play(Table(WORDS), "at_grpo", 3)
    samples = build_samples(groups, options(PRESETS["at_grpo"]))
    states = {(r["group_id"], r["state"]) for r in samples.records}
    assert len(samples.records) == 4 * len(states)
    for record in samples.records:
        alike = [
            r
            for r in samples.records
            if (r["group_id"], r["state"]) == (record["group_id"], record["state"])
        ]
        spread = len({r["env_reward"] for r in alike}) > 1
        assert (record["reason"] == "zero spread") is not spread
    kept = [r for r in samples.records if not r["reason"]]
    assert any(not r["chosen"] for r in kept)
    assert any(r["chosen"] for r in kept)
    assert {r["agent_id"] for r in kept} == {"planner", "mover"}


async def test_a_record_of_a_tree_is_credited_the_same_again() -> None:
    for strategy in ("at_grpo", "group"):
        config = parse({
            "env_adapter": {"strategy": strategy}, "adaptation": {"controller": "none"},
            "algorithm": {"preset": "at_grpo" if strategy == "at_grpo" else "grpo"},
        })  # fmt: skip
        rules = options(config.algorithm.resolved)
        groups = await play(Table(WORDS), strategy, 3)
        samples = build_samples(groups, rules)
        again = groups_of(samples.records, config)
        assert [t.segments for g in again for t in g.played.trajectories] == [
            t.segments for g in groups for t in g.played.trajectories
        ]
        found = build_samples(again, rules)
        assert found.records == samples.records
        assert found.rows == samples.rows


async def test_candidates_of_an_agent_train_the_model_that_plays_it() -> None:
    table = Table(WORDS)
    player = Player(model="mover", sampling=Sampling(max_new_tokens=4))
    groups = await play(table, "at_grpo", 3, agents={"mover": player})
    both = {"policy": (1, EVERYTHING), "mover": (1, EVERYTHING)}
    rules = replace(options(PRESETS["at_grpo"]), players=both)
    samples = build_samples(groups, rules)
    assert {request.model for request in table.requests} == {"policy", "mover"}
    for role, agent in (("policy", "planner"), ("mover", "mover")):
        kept = {
            f"{r['trajectory_id']}/{r['segment']}"
            for r in samples.records
            if not r["reason"] and r["agent_id"] == agent
        }
        assert {row.key for row in samples.rows[role]} == kept != set()
        assert sum(sum(row.weights) for row in samples.rows[role]) == pytest.approx(1.0)
