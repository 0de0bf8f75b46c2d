"""TRL's adapter with a trainer in the place of TRL's: tokens, masks, ids and rewards."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.sidecar.fakes import Count, FakeSidecar, task
from triforge.sidecar.trl import GRPOTasks

END = 2


class FakeTokenizer:
    """Words are tokens; an answer ends with END and a newline, as in ChatML."""

    eos_token_id = END

    def __init__(self) -> None:
        self._ids = {"<end>": END}

    def encode(self, text: str) -> list[int]:
        return [self._ids.setdefault(word, 10 + len(self._ids)) for word in text.split()]

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        words = {number: word for word, number in self._ids.items()}
        return " ".join(words[i] for i in ids if i != END or not skip_special_tokens)

    def apply_chat_template(
        self, messages: list[dict[str, str]], *, add_generation_prompt: bool, **_: Any
    ) -> list[int]:
        turns = [f"<{m['role']}> {m['content']} <end> <newline>" for m in messages]
        return self.encode(" ".join([*turns, *["<assistant>"] * add_generation_prompt]))


class FakeTrainer:
    """Says `up` to everything."""

    def __init__(self, most: int = 100, *, ends: bool = True) -> None:
        self.processing_class, self.max_completion_length = FakeTokenizer(), most
        self.prompts: list[list[int]] = []
        self._answer = f"up{' <end>' * ends}"

    def _generate_single_turn(
        self, prompt_ids: list[list[int]], images: None, fields: dict[str, Any], number: int
    ) -> tuple[list[list[int]], list[list[float]]]:
        self.prompts += prompt_ids
        ids = self.processing_class.encode(self._answer)
        return [ids] * len(prompt_ids), [[-0.5] * len(ids)] * len(prompt_ids)


def grpo(sidecar: FakeSidecar) -> GRPOTasks:
    return GRPOTasks(sidecar, 2)  # type: ignore[arg-type]


STATE = SimpleNamespace(global_step=7)


@pytest.mark.parametrize("ends", [True, False], ids=["ended", "cut"])
def test_each_prompt_is_the_tokens_before_it_and_observations_are_masked(ends: bool) -> None:
    trainer, tasks = FakeTrainer(ends=ends), grpo(FakeSidecar(task("a", 2)))
    played = tasks.play(Count)([None] * 2, trainer)
    read = trainer.processing_class.decode
    first, second = trainer.prompts[0], trainer.prompts[2]
    new = " up <end> <newline> <user> left 1 <end> <newline> <assistant>"
    assert read(first, skip_special_tokens=False) == "<user> count <end> <newline> <assistant>"
    assert read(second, skip_special_tokens=False) == read(first, skip_special_tokens=False) + new
    for ids, mask, logprobs in zip(
        played["completion_ids"], played["env_mask"], played["logprobs"], strict=True
    ):
        own = [i for i, kept in zip(ids, mask, strict=True) if kept]
        assert read(own, skip_special_tokens=True) == "up up"
        assert [bool(p) for p in logprobs] == [bool(m) for m in mask]
    assert [one.success for one in played["rollout"]] == [True, True]
    assert played["rollout"][0].messages[-1] == {"role": "user", "content": "left 0"}


def test_an_episode_that_is_cut_off_is_a_failure() -> None:
    tasks = grpo(FakeSidecar(task("a", 9), task("b", 9)))
    long = tasks.play(Count, max_turns=3)([None] * 2, FakeTrainer())["rollout"]
    full = tasks.play(Count)([None] * 2, FakeTrainer(most=8))["rollout"]
    assert {(one.success, one.truncated) for one in (*long, *full)} == {(False, True)}
    assert len(full[0].messages) < len(long[0].messages)


def test_rows_in_addition_to_the_rollouts_of_a_task_are_not_reported() -> None:
    sidecar = FakeSidecar(task("a", 1), task("b", 1, rollouts=1))
    tasks = grpo(sidecar)
    rollouts = tasks.play(Count)([None] * 4, FakeTrainer())["rollout"]
    rewards = tasks.reward(prompts=[], completions=[], trainer_state=STATE, rollout=rollouts)
    assert rewards == [0.0, 1.0, 2.0, None]
    ((version, reported),) = sidecar.reports
    assert ([one.id for one in reported], version) == (["a0", "a1", "b0"], 7)
    with pytest.raises(ValueError, match=r"env_adapter\.rollouts"):
        grpo(FakeSidecar(task("a", 1, rollouts=3))).play(Count)([None] * 2, FakeTrainer())
