"""Images in sessions: what the model has seen stands in the turns, is kept with the trajectory, and is not tokenised again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from demo.models.tiny_models import build_tiny_vision_model
from tests.service.session_services import Services, services
from tests.service.test_session_dialects import post
from tests.service.test_session_groups import run_of
from tests.unit.policy.test_pictures import ASSISTANT, BEGIN, END, GO, PAD, SEE, STOP, USER, Seeing
from triforge.chat_template import templates_of
from triforge.store.artifacts import ArtifactStore
from triforge.store.images import ImageStore
from triforge.testing.pictures import png
from triforge.vision.files import data_uri, describe

SHOT = png(60, 90)
REF = describe(SHOT)
URI = data_uri(REF, SHOT)
SEEN = [BEGIN, *[PAD] * 6, STOP]


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[Services]:
    model = build_tiny_vision_model(tmp_path / "model", ("go", "see", "cup"))
    async with services(tmp_path, model, Seeing) as found:
        found.engine.answer = lambda *_: [GO, END]
        yield found


def shown(text: str) -> dict[str, Any]:
    image = {"type": "image_url", "image_url": {"url": URI}}
    return {"role": "user", "content": [image, {"type": "text", "text": text}]}


async def test_images_continue_a_lineage_and_reach_the_trajectory(
    both: Services, tmp_path: Path
) -> None:
    store = ImageStore(ArtifactStore(str(tmp_path / "kept")))
    run = await run_of(both, store.put)
    playing = run.play(run.group(rollouts=1))
    made = await run.begin()
    async with both.client(made) as client:
        history: list[Any] = [shown("see")]
        for _ in range(2):
            answer = await client.chat.completions.create(model="m", messages=history)
            history += [{"role": "assistant", "content": answer.choices[0].message.content}, shown("go")]  # fmt: skip
    one, two = await both.turns(made)
    assert (one.parent, two.parent) == (None, "1.0")
    assert list(one.new_ids) == [USER, *SEEN, SEE, ASSISTANT]
    assert [(p.image, p.start, p.end) for p in (*one.images, *two.images)] == [
        (REF, 2, 8),
        (REF, 15, 21),
    ]
    asked = [body for path, body in both.engine.calls if path == "/generate"][-1]
    assert asked["image_data"] == [[URI, URI]]
    assert (await both.tell(made, "reward", success=True)).status_code == 200
    await asyncio.wait_for(playing, 5)
    (trajectory,) = (await run.played()).trajectories
    (segment,) = trajectory.segments
    assert segment.images == (*one.images, *two.images)
    assert [segment.ids[p.start : p.end] for p in segment.images] == [(PAD,) * 6] * 2
    assert [(s.images, s.next_images) for s in trajectory.steps] == [((REF,), (REF,)), ((REF,), ())]
    assert await store.get(REF) == SHOT
    assert not [key for key in both.broker._texts if "session-image" in key]


async def test_another_image_is_another_conversation_in_either_dialect(both: Services) -> None:
    made = await both.begin()
    source = {"type": "base64", "media_type": "image/png", "data": URI.partition(",")[2]}
    see: Any = {
        "role": "user",
        "content": [{"type": "image", "source": source}, {"type": "text", "text": "see"}],
    }
    reply = await post(made, "messages", {"max_tokens": 4, "messages": [see]})
    assert reply.status_code == 200, reply.text
    past_answer = {"role": "assistant", "content": reply.json()["content"][0]["text"]}
    for first in (shown("see"), {"role": "user", "content": "see"}):
        reply = await post(
            made,
            "chat/completions",
            {"messages": [first, past_answer, {"role": "user", "content": "go"}]},
        )
        assert reply.status_code == 200, reply.text
    assert [turn.parent for turn in await both.turns(made)] == [None, "1.0", None]


async def test_responses_take_images_that_continue_those_of_chat(both: Services) -> None:
    made = await both.begin()
    image = {"type": "input_image", "image_url": URI, "detail": "auto"}
    see: Any = {"role": "user", "content": [image, {"type": "input_text", "text": "see"}]}
    reply = await post(made, "responses", {"input": [see]})
    assert reply.status_code == 200, reply.text
    (past_answer,) = reply.json()["output"]
    both_ways = [
        ("responses", {"input": [see, past_answer, see]}),
        ("chat/completions", {"messages": [shown("see"), {"role": "assistant", "content": past_answer["content"][0]["text"]}, shown("go")]}),
    ]  # fmt: skip
    for route, body in both_ways:
        reply = await post(made, route, body)
        assert reply.status_code == 200, reply.text
    turns = await both.turns(made)
    assert [turn.parent for turn in turns] == [None, "1.0", "1.0"]
    assert list(turns[0].new_ids) == [USER, *SEEN, SEE, ASSISTANT]
    assert [placed.image for turn in turns for placed in turn.images] == [REF] * 3


async def test_images_are_seen_with_tools_and_in_what_tools_answer(tmp_path: Path) -> None:
    model = build_tiny_vision_model(tmp_path / "model", ("go", "see", "cup", "look"))
    template = templates_of(model)["default"]
    shows_tools = "{% if tools %}<system> look{% endif %} " + template
    (model / "chat_template.jinja").write_text(shows_tools, encoding="utf-8")
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    called = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    async with services(tmp_path, model, Seeing) as both:
        both.engine.answer = lambda *_: [GO, END]
        made = await both.begin()
        first = {"tools": [tool], "messages": [shown("see")]}
        reply = await post(made, "chat/completions", first)
        assert reply.status_code == 200, reply.text
        past_answer = {
            "role": "assistant",
            "content": reply.json()["choices"][0]["message"]["content"],
        }
        found = {**shown("cup"), "role": "tool", "tool_call_id": "c"}
        past = {"role": "assistant", "content": "", "tool_calls": [called]}
        for messages in ([shown("see"), past_answer, shown("go")], [shown("see"), past, found]):
            reply = await post(made, "chat/completions", {"tools": [tool], "messages": messages})
            assert reply.status_code == 200, reply.text
        turns = await both.turns(made)
    assert [turn.parent for turn in turns] == [None, "1.0", None]
    assert [len(turn.images) for turn in turns] == [1, 1, 2]
    for turn, before in zip(turns, (0, len(turns[0].new_ids) + 2, 0), strict=True):
        for placed in turn.images:
            assert set(turn.new_ids[placed.start - before : placed.end - before]) == {PAD}


async def test_a_session_whose_images_are_lost_measures_nothing(
    both: Services, tmp_path: Path
) -> None:
    run = await run_of(both, ImageStore(ArtifactStore(str(tmp_path / "kept"))).put)
    playing = run.play(run.group(rollouts=1, retries=0))
    made = await run.begin()
    async with both.client(made) as client:
        await client.chat.completions.create(model="m", messages=[shown("see")])
    both.broker._texts = {k: v for k, v in both.broker._texts.items() if "session-image" not in k}
    await both.tell(made, "reward", success=True)
    await asyncio.wait_for(playing, 5)
    (trajectory,) = (await run.played()).trajectories
    assert trajectory.outcome.error is not None
    assert "is lost" in trajectory.outcome.error.detail
