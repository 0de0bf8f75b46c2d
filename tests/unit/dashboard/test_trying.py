"""The page on which models are talked to and watched: what they are asked, with whose key, and that what they say stays text."""

from __future__ import annotations

import html
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.dashboard.apis import Apis
from services.dashboard.app import create_app

EVIL = "<img src=x onerror=alert(1)>"
OWN = {"origin": "http://dashboard", "authorization": "Bearer tfk_1"}
GOLDEN = Path(__file__).parents[2] / "contract" / "types"
PLAN = (
    "go to countertop 1", "take mug 1 from countertop 1", "go to sinkbasin 1", "clean mug 1 with sinkbasin 1", "go to shelf 1",
    "move mug 1 to shelf 1",
)  # fmt: skip


def played(responses: list[str]) -> Any:
    """What env_adapter answers: a step each response, and after six the end."""
    play = json.loads((GOLDEN / "TaskPlay.json").read_text())
    step = play["trajectory"]["steps"][0]
    steps = [step | {"index": n, "response": said} for n, said in enumerate(responses)]
    play["trajectory"] |= {"steps": steps, "outcome": {"value": 1}}
    turns = [{"role": "assistant", "content": said} for said in responses]
    asked = [{"role": "user", "content": "clean a mug"}, *turns]
    return play | {"asked": [] if len(responses) == 6 else asked}


class Models(httpx.AsyncBaseTransport):
    """Services that answer what a test says, and keep what they were asked."""

    def __init__(self) -> None:
        self.texts: dict[str, list[str]] = {"policy_model": [], "reward_model": []}
        self.asked: list[tuple[str, str, Any]] = []
        self.refused: dict[str, int] = {}  # what a host or path answers in place of 200

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        host, path = request.url.host, request.url.path
        body = json.loads(request.content) if request.content else None
        self.asked.append((host, path, body))
        assert request.headers["authorization"] == "Bearer tfk_1"
        status = self.refused.get(host, self.refused.get(path, 200))
        said = self._answer(host, path, body) if status == 200 else {"detail": f"no {EVIL}"}
        return httpx.Response(status, json=said, request=request)

    def _answer(self, host: str, path: str, body: Any) -> Any:
        if path == "/v1/weights":
            return json.loads((GOLDEN / "WeightsState.json").read_text())
        if path == "/v1/judge":
            vote = {"value": 1, "text": f"good {EVIL}"}
            judged = {"step": 0, "votes": [vote], "mean": 1.0, "invalid": 0}
            return {
                "steps": [judged] * len(body["steps"]),
                "mean": 1.0,
                "invalid": 0,
                "versions": [1],
            }
        if path == "/v1/generate":
            (asked,) = body["requests"]
            assert asked["prefix_ids"] == []  # ids of one model say nothing to another
            output = {
                "text": self.texts[host].pop(0), "ids": [8], "logprobs": [-1.0], "finish": "stop",
                "versions": [{"version": 1, "start": 0, "end": 1}],
            }  # fmt: skip
            return {"replies": [{"prompt_ids": [7], "outputs": [output]}]}
        assert (host, path) == ("env_adapter", "/v1/tasks/t-1/play")
        return played(body["responses"])

    def prompts(self, host: str) -> list[Any]:
        """The messages of each request to a model."""
        return [
            body["requests"][0]["messages"]
            for asked, path, body in self.asked
            if (asked, path) == (host, "/v1/generate")
        ]


@pytest.fixture
def models() -> Models:
    return Models()


@pytest.fixture
async def browser(models: Models) -> AsyncIterator[httpx.AsyncClient]:
    names = ("trainer", "env_adapter", "reward", "policy_model", "reward_model")
    apis = Apis({name: f"http://{name}" for name in names}, transport=models)
    app = httpx.ASGITransport(create_app(apis=apis))
    async with httpx.AsyncClient(transport=app, base_url="http://dashboard", headers=OWN) as client:
        yield client
    await apis.close()


async def send(browser: httpx.AsyncClient, before: httpx.Response | None, **fields: str) -> Any:
    """The form of a page, filled and sent."""
    kept = re.search(r'name="kept" value="([^"]*)"', before.text) if before else None
    form = {"left": "policy_model", "right": "reward_model", **fields}
    return await browser.post("/try", data=form | {"kept": html.unescape(kept[1]) if kept else ""})


async def test_two_models_are_talked_to_each_with_its_own_side(
    browser: httpx.AsyncClient, models: Models
) -> None:
    models.texts = {"policy_model": ["one", f"two {EVIL}"], "reward_model": ["other", "more"]}
    first = await send(browser, None, verb="say", text="hello")
    second = await send(browser, first, verb="say", text="again", tokens="9")
    assert second.status_code == 200
    assert [message["content"] for message in models.prompts("reward_model")[1]] == [
        "hello",
        "other",
        "again",
    ]
    sampling = [
        body["requests"][0]["sampling"] for _, path, body in models.asked if path == "/v1/generate"
    ]
    assert {one["max_new_tokens"] for one in sampling} == {64, 9}
    assert EVIL not in second.text
    assert html.escape(EVIL) in second.text
    assert all(said in second.text for said in ("one", "other", "more"))


async def test_a_task_is_played_step_by_step_beside_another_model_and_judged(
    browser: httpx.AsyncClient, models: Models
) -> None:
    models.texts = {"policy_model": [*PLAN], "reward_model": ["look", EVIL] * 3}
    page = await browser.get("/try?task=t-1")
    assert 'name="task" value="t-1"' in page.text
    for number in range(1, 7):
        page = await send(browser, page, verb="step", task="t-1")
        assert page.status_code == 200, page.text
        assert len(models.prompts("policy_model")) == number  # what was played is not sampled again
        plays = [body["responses"] for host, _, body in models.asked if host == "env_adapter"]
        assert [len(given) for given in plays] == [
            *range(number + 1)
        ]  # the opening, and each step once
        assert ("✓ success" in page.text) == (number == 6)
    assert EVIL not in page.text
    assert html.escape(EVIL) in page.text
    page = await send(browser, page, verb="judge", task="t-1")
    (judged,) = [body for _, path, body in models.asked if path == "/v1/judge"]
    assert [step["response"] for step in judged["steps"]] == [*PLAN]
    assert page.text.count("good &lt;img") == 6
    assert len(models.prompts("policy_model")) == 6
    assert 'aria-label="step 0"' not in (await send(browser, page, verb="anew", task="t-1")).text


@pytest.mark.parametrize("verb", ["say", "step", "judge"])
async def test_a_key_that_may_only_read_is_asked_for_another_one(
    browser: httpx.AsyncClient, models: Models, verb: str
) -> None:
    models.refused = dict.fromkeys(("/v1/generate", "/v1/tasks/t-1/play"), 403)
    page = await send(browser, None, verb=verb, text="hello", task="t-1")
    assert page.status_code == 401
    assert not [path for _, path, _ in models.asked if path == "/v1/judge"]


async def test_a_second_model_that_fails_is_shown_and_stops_nothing(
    browser: httpx.AsyncClient, models: Models
) -> None:
    models.texts["policy_model"] = ["hi", *PLAN]
    models.refused = {"reward_model": 422}
    page = await send(browser, None, verb="say", text="hello")
    assert "(no answer: no &lt;img" in page.text
    for _ in PLAN:
        page = await send(browser, page, verb="step", task="t-1")
    assert page.text.count("<pre>(no answer: no &lt;img") == 7  # that of the talk, too
    assert "✓ success" in page.text


async def test_what_other_models_said_or_another_task_heard_is_left_behind(
    browser: httpx.AsyncClient, models: Models
) -> None:
    models.texts = {"policy_model": ["hi", "go", "on"], "reward_model": ["ho", "look", "see"]}
    page = await send(browser, None, verb="say", text="hello")
    page = await send(browser, page, verb="step", task="t-1")
    other = await send(browser, page, verb="judge", task="t-1", right="")
    assert 'aria-label="step 0"' not in other.text
    page = await send(browser, page, verb="say", text="", task="t-2")
    page = await send(browser, page, verb="step", task="t-1")
    assert 'aria-label="step 1"' not in page.text  # it began anew
    swapped = await send(browser, page, verb="say", left="reward_model", right="policy_model")
    assert "hello" in page.text
    assert "hello" not in swapped.text


@pytest.mark.parametrize(
    ("fields", "headers", "status"),
    [
        ({"verb": "say", "text": "x"}, {"origin": "http://evil.example"}, 403),
        ({"verb": "say", "text": "x", "left": "trainer"}, {}, 422),
        ({"verb": "say", "text": "x", "tokens": "0"}, {}, 422),
        ({"verb": "say", "text": "x", "tokens": "000000001999999"}, {}, 422),
        ({"verb": "step", "task": "t", "kept": "[]"}, {}, 422),
        ({"verb": "step", "task": "t", "kept": '{"played": [{"reply": 1}]}'}, {}, 422),
    ],
)
async def test_other_pages_and_what_no_form_sends_reach_no_model(
    browser: httpx.AsyncClient,
    models: Models,
    fields: dict[str, str],
    headers: dict[str, str],
    status: int,
) -> None:
    reply = await browser.post("/try", data=fields, headers=headers)
    assert (reply.status_code, models.asked) == (status, [])
