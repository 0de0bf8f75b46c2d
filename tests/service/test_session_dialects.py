"""The other dialects of sessions: what Anthropic's clients send and read, and what OpenAI's responses are."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.session_services import Services, services
from triforge.types import MadeSession

LOOK: Any = {"name": "look", "description": "Look inside.", "input_schema": {"type": "object"}}
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "fridge"}}\n</tool_call>'
ASK: Any = {
    "model": "claude", "max_tokens": 200, "system": [{"type": "text", "text": "Help.", "cache_control": {"type": "ephemeral"}}],
    "messages": [{"role": "user", "content": "What is in the fridge?"}], "tools": [LOOK],
}  # fmt: skip


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[Services]:
    async with services(tmp_path) as found:
        yield found


async def post(made: MadeSession, path: str, body: Any) -> httpx.Response:
    async with httpx.AsyncClient(headers={"x-api-key": made.key}) as http:
        return await http.post(f"{made.base_url}/{path}", json=body)


def of_stream(text: str) -> dict[str, Any]:
    """A message put together from its events, as Anthropic's own client does."""
    message: dict[str, Any] = {}
    for part in text.strip().split("\n\n"):
        name, _, data = part.partition("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                assert event["index"] == len(message["content"])
                message["content"].append({**event["content_block"]})
            case "content_block_delta":
                block, delta = message["content"][event["index"]], event["delta"]
                if delta["type"] == "text_delta":
                    block["text"] += delta["text"]
                else:
                    block["input"] = json.loads(delta["partial_json"])
            case "message_delta":
                message |= event["delta"]
                message["usage"] |= event["usage"]
    assert text.endswith('event: message_stop\ndata: {"type": "message_stop"}\n\n')
    return message


async def ask(made: MadeSession, body: Any, *, stream: bool) -> dict[str, Any]:
    reply = await post(made, "messages", {**body, "stream": stream})
    assert reply.status_code == 200, reply.text
    return of_stream(reply.text) if stream else dict(reply.json())


@pytest.mark.parametrize("stream", [False, True])
async def test_anthropics_messages_continue_a_lineage_with_tools(
    both: Services, stream: bool
) -> None:
    made = await both.begin()
    both.says(f"Let me see.\n{CALL}", "A cup.")
    called = await ask(made, ASK, stream=stream)
    assert called["stop_reason"] == "tool_use"
    text, use = called["content"]
    assert text == {"type": "text", "text": "Let me see."}
    assert (use["type"], use["name"], use["input"]) == ("tool_use", "look", {"at": "fridge"})
    result = {"type": "tool_result", "tool_use_id": use["id"], "content": [{"type": "text", "text": "a cup"}]}  # fmt: skip
    history = [
        *ASK["messages"],
        {"role": "assistant", "content": called["content"]},
        {"role": "user", "content": [result, {"type": "text", "text": "So?"}]},
    ]
    last = await ask(made, {**ASK, "messages": history}, stream=stream)
    assert last["content"] == [{"type": "text", "text": "A cup."}]
    assert (last["stop_reason"], last["role"], last["type"]) == ("end_turn", "assistant", "message")
    one, two = await both.turns(made)
    assert (one.parent, two.parent) == (None, "1.0")
    assert last["usage"]["output_tokens"] == len(two.output.ids)
    assert two.observation == "tool: a cup\nuser: So?"
    rewarded = await both.tell(made, "reward", steps={called["id"]: 0.5})
    assert rewarded.status_code == 200, rewarded.text


@pytest.mark.parametrize(
    ("change", "phrase"),
    [
        ({"colour": "red"}, "colour: unknown field"),
        ({"messages": []}, "messages"),
        ({"thinking": {"type": "enabled", "budget_tokens": 100}}, "thinking"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "image"),
        ({"tool_choice": {"type": "tool", "name": "jump"}}, "expected one of the tools: look"),
    ],
)
async def test_what_is_no_message_is_refused(both: Services, change: Any, phrase: str) -> None:
    made = await both.begin()
    reply = await post(made, "messages", {**ASK, **change})
    assert reply.status_code == 422
    assert phrase in reply.json()["detail"]
    assert await both.turns(made) == ()


@pytest.mark.parametrize("stream", [False, True])
async def test_openais_responses_continue_a_lineage_with_tools(
    both: Services, stream: bool
) -> None:
    made = await both.begin()
    both.says(f"Let me see.\n{CALL}", "A cup.")
    look: Any = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}  # fmt: skip
    history: list[Any] = [{"role": "user", "content": "What is in the fridge?"}]

    async def asked() -> Any:
        given: Any = {"model": "m", "input": history, "instructions": "Help.", "tools": [look], "max_output_tokens": 200}  # fmt: skip
        async with both.client(made) as client:
            if not stream:
                return await client.responses.create(**given)
            async with client.responses.stream(**given) as events:
                return await events.get_final_response()

    called = await asked()
    assert called.output_text == "Let me see."
    call = called.output[1]
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "look", {"at": "fridge"})  # fmt: skip
    kept = {"type", "id", "role", "status", "content", "call_id", "name", "arguments"}
    for item in called.output:
        shown = item.model_dump(include=kept, exclude_none=True)
        if item.type == "message":
            shown["content"] = [{"type": "output_text", "text": item.content[0].text, "annotations": []}]  # fmt: skip
        history.append(shown)
    history.append({"type": "function_call_output", "call_id": call.call_id, "output": "a cup"})
    last = await asked()
    assert (last.status, last.output_text) == ("completed", "A cup.")
    one, two = await both.turns(made)
    assert (one.parent, two.parent, two.observation) == (None, "1.0", "a cup")
    assert last.usage.output_tokens == len(two.output.ids)
    rewarded = await both.tell(made, "reward", steps={last.id: 1.0})
    assert rewarded.status_code == 200, rewarded.text


@pytest.mark.parametrize("path", ["messages", "responses", "chat/completions"])
async def test_a_stream_whose_text_is_taken_back_ends_with_an_error_and_keeps_nothing(
    both: Services, path: str
) -> None:
    made = await both.begin()
    both.says("one two")
    whole = len(both.renderer.encode_text("one two"))
    both.engine.decode = lambda ids: "one" if len(ids) < whole else "two"
    asked: dict[str, Any] = {
        "messages": {k: v for k, v in ASK.items() if k != "tools"},
        "responses": {"model": "m", "input": "Go on.", "max_output_tokens": 200},
        "chat/completions": {"model": "m", "messages": [{"role": "user", "content": "Go on."}]},
    }
    reply = await post(made, path, {**asked[path], "stream": True})
    last = reply.text.strip().split("\n\n")[-1]
    error = json.loads(last.partition("data: ")[2])["error"]
    assert "changed text that it had streamed" in error["message"]
    assert last.startswith("event: error\n") is (path == "messages")
    assert await both.turns(made) == ()


@pytest.mark.parametrize("stream", [False, True])
async def test_an_empty_message_is_one_empty_text(both: Services, stream: bool) -> None:
    made = await both.begin()
    both.says("")
    found = await ask(made, {k: v for k, v in ASK.items() if k != "tools"}, stream=stream)
    assert found["content"] == [{"type": "text", "text": ""}]
