"""`POST /v1/judge` as people use it, through the typed client and as plain JSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest

from services.reward.__main__ import judge_of
from services.reward.app import create_app
from triforge.config import RunConfig, Settings, parse
from triforge.types import GenerateOutput, GenerateReply, GenerateRequest, VersionSpan

BODY: dict[str, Any] = {
    "instruction": "put mug in shelf",
    "steps": [
        {"observation": "service desk", "response": "go desk", "next_observation": "mug"},
        {"observation": "mug", "response": "I will take it.\ntake mug", "action": "take mug",
         "next_observation": "ok"},
    ],
    "votes": 3,
    "prompt": "terse",
}  # fmt: skip


class Service:
    """Votes +1, nonsense, -1 on every step, with weights of version 4."""

    def __init__(self) -> None:
        self.requests: list[GenerateRequest] = []

        self.hangs = False

    async def __call__(self, requests: Sequence[GenerateRequest]) -> list[GenerateReply]:

        if self.hangs:
            await asyncio.Event().wait()
        self.requests += requests
        texts = (r"\boxed{1}", "hm", r"\boxed{-1}")
        spans = (VersionSpan(version=4, start=0, end=1),)
        outputs = [
            GenerateOutput(text=text, ids=(9,), logprobs=(0.0,), versions=spans, finish="stop")
            for text in texts
        ]
        return [
            GenerateReply(prompt_ids=(5,), outputs=tuple(outputs[: request.n]))
            for request in requests
        ]


MODES: dict[str, dict[str, Any]] = {
    "separate": {},
    "shared": {"algorithm": {"preset": "spark"}, "adaptation": {"controller": "none"}},
}


def document(mode: str) -> RunConfig:
    """Return the document of a run whose reward model judges, or whose policy judges itself."""
    judge = {"votes": 2, "deadline_s": 0.5}
    return parse(MODES[mode] | {"reward": judge, "models": {"reward": {"temperature": 0.5}}})


class Reward:
    """The service's app as it is wired in a mode, and what stands behind it."""

    def __init__(self, mode: str) -> None:
        self.service = Service()
        api, self.client = judge_of(Settings(), document(mode))
        api = replace(api, generate_many=self.service)
        app = create_app(api=api)
        self.transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=self.transport, base_url="http://reward")


@pytest.fixture
async def reward() -> AsyncIterator[Reward]:
    made = Reward("separate")
    async with made.http:
        yield made
    await made.client.close()


@pytest.mark.parametrize(("mode", "asked"), [("separate", "reward"), ("shared", "policy")])
async def test_the_judge_is_the_reward_model_or_the_policy_itself(mode: str, asked: str) -> None:
    settings = Settings(policy_model_url="http://policy:1", reward_model_url="http://reward:1")
    api, client = judge_of(settings, document(mode))
    assert client.base_url == f"http://{asked}:1"
    assert api.generate_many == client.generate_many
    await client.close()


async def test_a_trajectory_in_text_form_gets_votes_on_every_step(reward: Reward) -> None:
    reply = await reward.http.post("/v1/judge", json=BODY)
    assert reply.status_code == 200
    votes = [
        {"value": 1, "text": r"\boxed{1}"},
        {"value": 0, "text": "hm"},
        {"value": -1, "text": r"\boxed{-1}"},
    ]
    assert reply.json() == {
        "steps": [{"step": step, "votes": votes, "mean": 0.0, "invalid": 1} for step in (0, 1)],
        "mean": 0.0,
        "invalid": 2,
        "versions": [4],
    }
    (first,) = reward.service.requests[1].messages
    assert first.content == "task put mug in shelf ; service desk > go desk ; mug > take mug ; ok ?"


async def test_what_the_request_leaves_out_is_the_deployments_own(reward: Reward) -> None:
    body = {key: value for key, value in BODY.items() if key not in ("votes", "prompt")}
    reply = (await reward.http.post("/v1/judge", json=body)).json()
    assert [len(step["votes"]) for step in reply["steps"]] == [2, 2]
    assert reply["mean"] == 0.5
    assert "| I will take it." in reward.service.requests[1].messages[0].content
    assert reward.service.requests[0].sampling.temperature == 0.5


async def test_the_same_seed_asks_for_the_same_votes_and_no_seed_for_fresh_ones(
    reward: Reward,
) -> None:
    async def seeds(**extra: int) -> list[int | None]:
        reward.service.requests.clear()
        await reward.http.post("/v1/judge", json=BODY | extra)
        return [request.sampling.seed for request in reward.service.requests]

    assert await seeds(seed=3) == await seeds(seed=3)
    assert await seeds() != await seeds()
    assert len(set(await seeds(seed=3))) == 2


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"votes": 0}, "votes"),
        ({"steps": []}, "steps"),
        ({"prompt": "nice"}, "prompt"),
        ({"colour": 1}, "colour"),
        ({"steps": [{"observation": "o", "response": "r"}]}, "steps.0.next_observation"),
        ({"steps": [BODY["steps"][0]] * 100, "votes": 41}, "given 100 x 41, allowed at most 4096"),
    ],
)
async def test_a_malformed_request_is_a_problem_that_names_the_field(
    reward: Reward, change: dict[str, Any], field: str
) -> None:
    reply = await reward.http.post("/v1/judge", json=BODY | change)
    assert reply.status_code == 422
    assert reply.headers["content-type"] == "application/problem+json"
    assert field in reply.json()["detail"]
    assert reward.service.requests == []


async def test_a_model_that_hangs_meets_the_deadline(reward: Reward) -> None:
    reward.service.hangs = True
    reply = await reward.http.post("/v1/judge", json=BODY)
    assert reply.status_code == 502
    assert "reward.deadline_s" in reply.json()["detail"]
