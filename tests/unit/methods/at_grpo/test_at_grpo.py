"""AT-GRPO on two agents with one table of logits: it learns what comparing whole trajectories does not, of equal samples."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.trainer.credit.samples import build_samples
from services.trainer.replay.recorded_groups import groups_of
from tests.unit.methods.at_grpo.players import (
    EVERYTHING,
    PRESETS,
    WORDS,
    Players,
    options,
    play,
    success,
    training,
)
from tests.unit.methods.at_grpo.softmax import Table
from triforge.config import parse
from triforge.types import Player, Sampling

SAMPLES = 1_000


async def trained(strategy: str, *, shared: bool = True) -> tuple[Players, float]:
    """Players trained on so many sampled responses, and how often they succeed."""
    players = Players(shared=shared)
    (found,) = [one async for one in training(strategy, 0, SAMPLES, SAMPLES, players)]
    return players, found


async def test_candidates_of_one_state_teach_two_agents_better_than_whole_trajectories() -> None:
    before = await success(Players(shared=True))
    _, tree = await trained("at_grpo")
    _, naive = await trained("group")
    assert before < 0.2
    assert tree >= 0.9
    assert naive < tree - 0.2


async def test_each_agent_may_have_a_model_of_its_own_which_is_of_no_use_to_the_other() -> None:
    players, found = await trained("at_grpo", shared=False)
    assert found >= 0.9
    players.swapped = True
    assert await success(players) < 0.2


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
        own = [
            r for r in samples.records if r["trajectory_id"] == samples.records[0]["trajectory_id"]
        ]
        recorded: dict[int, list[int]] = {}
        for row, step in zip(own, groups[0].played.trajectories[0].steps, strict=True):
            ids = recorded.setdefault(row["segment"], [])
            ids += row["context_ids"]
            segment = groups[0].played.trajectories[0].segments[step.segment]
            assert ids == [*segment.ids[: step.start]]
            ids += row["response_ids"]
            assert row["agent_id"] == step.agent_id


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
