"""The critic of candidate actions learns from records of steps, and a step taken again learns the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from methods.pa_rl.best_of_k import critic_name, critic_state, read_critic
from methods.pa_rl.learning import ActionCritic, _states
from methods.pa_rl.options import PaRlOptions
from triforge.config import RunConfig, parse
from triforge.errors import ConfigError
from triforge.store.artifacts import ArtifactStore
from triforge.store.step_records import step_record_name, write_step_records

DOCUMENT: dict[str, Any] = {
    "env_adapter": {"strategy": "pa_rl"},
    "adaptation": {"controller": "none"},
    "algorithm": {"preset": "pa_rl"},
}


def critic_of(store: ArtifactStore, run_id: str, **changes: Any) -> ActionCritic:
    options = PaRlOptions.model_validate(
        {"members": 2, "hidden": 4, "updates": 3, "batch": 8} | changes
    )
    return ActionCritic(store, run_id, parse(DOCUMENT), options)


def records(step: int, purpose: str = "train") -> list[dict[str, Any]]:
    """Two rollouts of two steps: `up` ends well, `down` badly; one more was not measured."""
    rows = []
    for rollout, (response, score) in enumerate((("up", 1.0), ("down", 0.0), ("up", None))):
        for index in range(2):
            row = {
                "group_id": f"g{step}", "trajectory_id": f"g{step}-{rollout}", "step_index": index,
                "purpose": purpose, "instruction": "reach 2", "response": response, "score": score,
                "observation": "at 0" if index == 0 else f"at {response}", "env_reward": None,
            }  # fmt: skip
            rows.append(row)
    return rows


def test_it_learns_from_measured_training_rollouts(tmp_path: Path) -> None:
    store = ArtifactStore(str(tmp_path))
    critic = critic_of(store, "run")
    found = critic.learn(1, records(1) + records(1, "evaluate"))
    assert found["action_critic/online"] == 4
    assert found["action_critic/return_mean"] == pytest.approx(0.5, abs=0.3)
    over = found["action_critic/value_mean"] - found["action_critic/return_mean"]
    assert found["action_critic/overestimate"] == pytest.approx(over)
    assert store.exists(critic_name("run", 1))


class Counted(ArtifactStore):
    """Remembers what was read of it."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.names: list[str] = []

    def read(self, name: str) -> bytes:
        self.names.append(name)
        return super().read(name)


@pytest.mark.parametrize(("capacity", "read"), [(99, [2, 1]), (6, [2, 1]), (4, [2])])
def test_a_step_taken_again_learns_the_same(tmp_path: Path, capacity: int, read: list[int]) -> None:
    store = Counted(str(tmp_path))
    first = critic_of(store, "run", capacity=capacity)
    for step in (1, 2):
        first.learn(step, records(step))
        write_step_records(store, step_record_name("run", step), records(step))
    before = first.learn(3, records(3))
    written = store.read(critic_name("run", 3))
    store.names = []
    again = critic_of(store, "run", capacity=capacity)
    assert again.learn(3, records(3)) == before
    known = [name for name in store.names if name.endswith(".parquet")]
    assert known == [step_record_name("run", step) for step in read], "no more than is kept"
    assert again.learn(3, records(3)) == before, "nothing is taken in twice"
    assert store.read(critic_name("run", 3)) == written
    first.learn(4, records(4))
    assert not store.exists(critic_name("run", 1)), "old files go"


def test_what_the_critic_chose_from_are_actions_of_the_policy(tmp_path: Path) -> None:
    rows = [row | {"step_extra": '{"pa_rl": ["up", "left", "right"]}'} for row in records(1)]
    critic = critic_of(ArtifactStore(str(tmp_path)), "run")
    critic.learn(1, rows)
    first = critic._replay.online[0]
    assert first.following is not None
    assert (len(first.sampled), len(first.following)) == (4, 3), (
        "up, down, left, right; without down"
    )


def test_the_critic_reads_what_an_agent_has_seen_and_answered_before() -> None:
    rows = [
        {"instruction": "i", "observation": f"o{n}", "response": f"r{n}", "agent_id": agent}
        for n, agent in enumerate(("a", "b", "a"))
    ]
    expected = [((), "o0"), ((), "o1"), (("o0", "r0"), "o2")]
    assert _states(rows) == [critic_state("i", past, seen) for past, seen in expected]


def test_offline_data_teach_a_critic_that_chooses_from_the_first_step_on(tmp_path: Path) -> None:
    store = ArtifactStore(str(tmp_path))
    write_step_records(store, step_record_name("old", 1), records(1))
    critic = critic_of(store, "run", offline_run="old", offline_updates=5)
    assert critic.learn(0, [])["action_critic/online"] == 0
    offline = read_critic(store, "run", 0)
    assert offline is not None
    assert offline.updates == 5
    critic.learn(1, records(1))
    online = read_critic(store, "run", 1)
    assert online is not None
    assert online.updates == 5 + 3
    assert critic_of(store, "alone").learn(0, []) == {}
    write_step_records(store, step_record_name("old", 2), records(2))
    found = critic_of(store, "run2", offline_run="old", capacity=6).learn(1, records(1))
    assert (found["action_critic/offline"], found["action_critic/online"]) == (6, 4)
    with pytest.raises(ConfigError, match="expected a run of this deployment"):
        critic_of(store, "run3", offline_run="gone").learn(1, [])


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"algorithm": {"preset": "grpo"}}, "env_adapter.strategy: given 'pa_rl' .*job = 'pg'"),
        (
            {"env_adapter": {"strategy": "group"}, "methods": {"pa_rl": {"candidates": 4}}},
            "methods.pa_rl: given candidates",
        ),
        (
            {"methods": {"pa_rl": {"edits": 1}}, "models": {"policy": {"regex": "a|b"}}},
            "methods.pa_rl.edits: given 1",
        ),
        ({"methods": {"pa_rl": {"offline_updates": 9}}}, "offline_updates: given 9"),
        ({"adaptation": {"controller": "llm_rewrite"}}, "adaptation.controller = 'llm_rewrite'"),
    ],
)
def test_a_combination_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse({**DOCUMENT, **changes})


def test_a_run_of_another_strategy_has_no_critic(tmp_path: Path) -> None:
    plain = ActionCritic(ArtifactStore(str(tmp_path)), "run", RunConfig(), PaRlOptions())
    assert plain.learn(1, records(1)) == {}
