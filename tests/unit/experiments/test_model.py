"""The model in this process answers like its engine, whichever way it takes."""

from __future__ import annotations

import asyncio

from experiments.model import LocalModel
from experiments.record import Models
from services.reward.prompts import Episode, build_prompt
from tests.unit.trainer.played import group_task, trajectory
from triforge.types import GenerateRequest, Sampling


async def test_votes_of_one_token_are_those_of_the_engine(models: Models) -> None:
    played = trajectory(group_task(), 0, outcome=1, lengths=[1] * 6)
    words = ["go fridge", "take egg", "take egg", "open fridge", "put egg", "go desk"]
    steps = [
        step.model_copy(update={"action": word, "observation": "task heat egg", "next_observation": "ok"})
        for step, word in zip(played.steps, words, strict=True)
    ]  # fmt: skip
    episode = Episode(instruction="heat egg", steps=steps)
    requests = [
        GenerateRequest(
            messages=build_prompt("terse", episode, index), n=3,
            sampling=Sampling(max_new_tokens=1, temperature=2.0, seed=40 + index),
        )
        for index in range(len(steps))
    ]  # fmt: skip
    model = LocalModel(models.reward)
    try:
        fast = await model.many(requests)
        slow = await asyncio.gather(*map(model, requests))
    finally:
        model.stop()
    assert len({output.ids for reply in slow for output in reply.outputs}) > 5
    for one, other in zip(fast, slow, strict=True):
        assert one.prompt_ids == other.prompt_ids
        for a, b in zip(one.outputs, other.outputs, strict=True):
            assert a.model_copy(update={"logprobs": ()}) == b.model_copy(update={"logprobs": ()})
            assert abs(a.logprobs[0] - b.logprobs[0]) < 1e-4
