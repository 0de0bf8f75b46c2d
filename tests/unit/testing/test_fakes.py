"""The shipped fakes keep the contracts of what they stand for."""

from __future__ import annotations

import pytest

from triforge.errors import PolicyError
from triforge.rollout.protocols import EnvironmentFamily, Generate
from triforge.testing import (
    FakeFamily,
    FakeGenerate,
    check_environment,
    require,
)
from triforge.types import ChatMessage, GenerateRequest, Task

UP = GenerateRequest(messages=(ChatMessage(role="user", content="count up"),), n=2)
TASK = Task(
    id="t", pool_id="p", slot="t", family="fake", instruction="Count to 2.", params={"target": 2}
)


async def test_the_fake_sampler_echoes_the_prefix_and_gives_its_answers() -> None:
    fake: Generate = FakeGenerate(["up", PolicyError("broken"), "down"], version=4)
    first = await fake(UP)
    assert [output.text for output in first.outputs] == ["up", "up"]
    assert first.outputs[0].versions[0].version == 4
    with pytest.raises(PolicyError, match="broken"):
        await fake(UP)
    prefix = (*first.prompt_ids, *first.outputs[0].ids)
    second = await fake(GenerateRequest(prefix_ids=prefix, messages=UP.messages))
    assert second.prompt_ids == prefix + first.prompt_ids
    assert (await fake(UP)).outputs[0].text == "down"


async def test_the_fake_family_keeps_the_contract_of_families() -> None:
    family: EnvironmentFamily = FakeFamily()
    require(await check_environment(family))
