"""verl's agent loop with words in the place of tokens: prompts, masks, groups and rewards."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from tests.unit.sidecar.fakes import Count, FakeSidecar, task
from triforge.sidecar import DrawnTask
from triforge.sidecar.verl import SessionGroups, TaskLoop

END = "<end>"


class FakeServers:
    """Says `up` to everything."""

    def __init__(self) -> None:
        self.prompts: list[list[str]] = []

    async def generate(self, *, prompt_ids: list[str], **_: Any) -> Any:
        self.prompts.append(prompt_ids)
        versions = {"min_global_steps": len(self.prompts), "max_global_steps": len(self.prompts)}
        return SimpleNamespace(token_ids=["up", END], log_probs=[-0.5, -0.1], extra_fields=versions)


class FakeLoop:
    """The methods of `AgentLoopBase` that are used; a token is a word."""

    def __init__(self, length: int = 100, turns: int | None = None, n: int = 2) -> None:
        limits = SimpleNamespace(max_assistant_turns=turns)
        self.rollout_config = SimpleNamespace(response_length=length, multi_turn=limits, n=n)
        self.tokenizer = SimpleNamespace(
            decode=lambda ids, skip_special_tokens: " ".join(i for i in ids if i != END)
        )
        self.server_manager = FakeServers()

    async def ct_build_initial_tokens(self, messages: list[dict[str, str]]) -> list[str]:
        return messages[0]["content"].split()

    async def ct_merge_assistant_token(
        self, ids: list[str], new: list[str], mask: list[int], logprobs: list[float] | None, *,
        assistant_logprobs: list[float],
    ) -> Any:  # fmt: skip
        assert logprobs is not None
        merged = SimpleNamespace(token_ids=ids + new)
        return merged, mask + [1] * len(new), logprobs + assistant_logprobs

    async def ct_merge_context_msg(
        self, before: list[Any], after: list[Any], ids: list[str], mask: list[int], logprobs: list[float]
    ) -> Any:  # fmt: skip
        new = " ".join(m["content"] for m in after[len(before) :]).split()
        merged = SimpleNamespace(token_ids=ids + new)
        return merged, mask + [0] * len(new), logprobs + [0.0] * len(new)


@pytest.fixture(autouse=True)
def _verl(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(AgentLoopOutput=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "verl.experimental.agent_loop", fake)


def loop_on(sidecar: FakeSidecar, episode: Any = Count) -> type[Any]:
    class Loop(TaskLoop, FakeLoop):
        tasks = SessionGroups(sidecar)  # type: ignore[arg-type]
        make: ClassVar[Any] = episode

    return Loop


async def sessions(loops: list[Any], uid: str = "x") -> list[Any]:
    running = (
        loop.run({}, uid=uid, session_id=n, global_steps=3, raw_prompt=[])
        for n, loop in enumerate(loops)
    )
    return await asyncio.gather(*running, return_exceptions=True)


async def test_the_sessions_of_a_prompt_are_one_group_and_each_gets_its_reward() -> None:
    sidecar = FakeSidecar(task("a", 2), task("b", 2))
    kind = loop_on(sidecar)
    first, second = await asyncio.gather(
        sessions([kind(), kind()]), sessions([kind(), kind()], uid="y")
    )
    assert {version for version, _ in sidecar.reports} == {3}
    names = [[one.id for one in report] for _, report in sidecar.reports]
    assert sorted(sorted(each) for each in names) == [["a0", "a1"], ["b0", "b1"]]
    for outputs in (first, second):
        assert sorted(one.reward_score for one in outputs) == [0.0, 1.0]
    assert all(one.success for one in sidecar.reported)
    assert sidecar.reported[0].messages[-1] == {"role": "user", "content": "left 0"}


async def test_observations_are_masked_and_the_versions_of_all_turns_are_named() -> None:
    kind = loop_on(FakeSidecar(task("a", 2, rollouts=1)))
    loop = kind()
    (output,) = await sessions([loop])
    assert output.prompt_ids == ["count"]
    assert output.response_ids == ["up", END, "left", "1", "up", END]
    assert output.response_mask == [1, 1, 0, 0, 1, 1]
    assert output.response_logprobs == [-0.5, -0.1, 0.0, 0.0, -0.5, -0.1]
    assert loop.server_manager.prompts == [["count"], ["count", "up", END, "left", "1"]]
    assert output.extra_fields["min_global_steps"] == 1
    assert output.extra_fields["max_global_steps"] == 2


@pytest.mark.parametrize(
    ("limit", "target"),
    [({"turns": 3}, 9), ({"length": 4}, 9), ({"length": 5}, 2)],
    ids=["turns", "tokens", "tokens of the winning answer"],
)
async def test_an_episode_that_is_cut_off_is_a_failure(limit: dict[str, int], target: int) -> None:
    sidecar = FakeSidecar(task("a", target, rollouts=1))
    (output,) = await sessions([loop_on(sidecar)(**limit)])
    (rollout,) = sidecar.reported
    assert (rollout.success, rollout.truncated) == (False, True)
    assert len(output.response_ids) == len(output.response_mask) <= limit.get("length", 100)


async def test_a_session_that_fails_is_reported_and_does_not_keep_the_others_waiting() -> None:
    made = []

    def episode(drawn: DrawnTask) -> Count:
        made.append(drawn)
        if len(made) == 1:
            raise OSError("no simulator")
        return Count(drawn)

    sidecar = FakeSidecar(task("a", 1))
    kind = loop_on(sidecar, staticmethod(episode))
    results = await sessions([kind(), kind()])
    assert sum(isinstance(one, OSError) for one in results) == 1
    assert sorted(one.error for one in sidecar.reported) == ["", "OSError: no simulator"]


@pytest.mark.parametrize("count", [1, 3])
async def test_another_number_of_sessions_than_rollouts_names_both_settings(count: int) -> None:
    kind = loop_on(FakeSidecar(task("a", 1)))
    *_, last = await sessions([kind(n=count) for _ in range(count)])
    assert isinstance(last, ValueError)
    assert "rollout.n" in str(last)
    assert "env_adapter.rollouts" in str(last)
