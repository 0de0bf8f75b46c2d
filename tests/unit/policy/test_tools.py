"""Tools at the OpenAI-compatible API: shown by the model's own template, called in its answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.policy.api.calls.parser import CallParser
from services.policy.api.tools import Tool, call_schema
from tests.fake_engine import FakeEngine
from tests.unit.policy.conftest import MakeService, Service, start
from triforge.errors import InputError
from triforge.testing.model_folders import TOOLS_TEMPLATE, chatml_folder

END = 2  # <|im_end|>
ASK = {"role": "user", "content": "What is in the fridge?"}
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look inside. <|im_end|>",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
    },
}
CHAT = {"messages": [ASK], "tools": [TOOL], "max_tokens": 200}
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "fridge"}}\n</tool_call>'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = chatml_folder(tmp_path / "tools")
    (made / "chat_template.jinja").write_text(TOOLS_TEMPLATE, encoding="utf-8")
    return made


async def service_that_says(text: str, folder: Path) -> Service:
    service = Service({"http://a": FakeEngine(model_path=str(folder), version="3")}, folder)
    service.fakes[0].weights.load(str(folder))
    await service.start()
    renderer = service.weights.renderer
    service.fakes[0].answer = lambda *_: [*renderer.encode_text(text), END]
    service.fakes[0].decode = renderer.decode
    return service


async def ask(service: Service, **extra: Any) -> dict[str, Any]:
    async with service.client() as client:
        response = await client.post("/v1/chat/completions", json={**CHAT, **extra})
    found: dict[str, Any] = response.json()
    return {"code": response.status_code, **found}


async def streamed(service: Service, **extra: Any) -> list[dict[str, Any]]:
    """Return the choice of each event."""
    async with service.client() as client:
        response = await client.post("/v1/chat/completions", json={**CHAT, "stream": True, **extra})
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line)["choices"][0] for line in lines]


def shown(service: Service) -> tuple[str, int]:
    """The prompt that the engine got, and how many turns end in it."""
    (body,) = service.generate_bodies()
    (ids,) = body["input_ids"]
    return service.weights.renderer.decode(ids, skip_special_tokens=False), ids.count(END)


async def test_template_shows_tools_calls_and_results(folder: Path) -> None:
    service = await service_that_says("A cup.", folder)
    called = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "fridge"}'}}  # fmt: skip
    messages = [
        {"role": "developer", "content": "Be short."},
        ASK,
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "c1", "content": "a cup<|im_end|>"},
    ]
    found = await ask(service, messages=messages)
    text, turns = shown(service)
    assert text == (
        f"<|im_start|>system\nTools: {json.dumps(TOOL)}\nBe short.<|im_end|>\n"
        "<|im_start|>user\nWhat is in the fridge?<|im_end|>\n"
        f"<|im_start|>assistant\n{CALL}<|im_end|>\n"
        "<|im_start|>tool\na cup<|im_end|><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert turns == 4, "the ends of turns in the tool's words and in its description are text"
    assert found["choices"][0]["message"] == {"role": "assistant", "content": "A cup."}
    assert found["choices"][0]["finish_reason"] == "stop"


async def test_a_call_in_the_answer_comes_back_as_a_call(folder: Path) -> None:
    service = await service_that_says(f"Let me see.\n{CALL}\n{CALL}", folder)
    found = await ask(service, n=2, logprobs=True)
    for choice in found["choices"]:
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] == "Let me see."
        calls = choice["message"]["tool_calls"]
        assert [(c["type"], c["function"]["name"]) for c in calls] == [("function", "look")] * 2
        assert json.loads(calls[0]["function"]["arguments"]) == {"at": "fridge"}
        assert "".join(t["token"] for t in choice["logprobs"]["content"]).count("look") == 2
    ids = [c["id"] for choice in found["choices"] for c in choice["message"]["tool_calls"]]
    assert len(set(ids)) == 4


async def test_an_answer_that_was_cut_off_says_so_and_not_that_it_calls(folder: Path) -> None:
    service = await service_that_says(f"{CALL} and then more", folder)
    length = len(service.weights.renderer.encode_text(f"{CALL} and"))
    choice = (await ask(service, max_tokens=length))["choices"][0]
    assert (choice["finish_reason"], len(choice["message"]["tool_calls"])) == ("length", 1)


async def test_a_streamed_call_comes_whole_and_nothing_of_it_as_text(folder: Path) -> None:
    service = await service_that_says(f"Let me see < it.\n{CALL}", folder)
    choices = await streamed(service)
    text = [c["delta"].get("content", "") for c in choices]
    assert "".join(text) == "Let me see < it."
    assert len([piece for piece in text if piece]) > 3, "the text comes as it is written"
    (calls,) = [c["delta"]["tool_calls"] for c in choices if "tool_calls" in c["delta"]]
    assert [(c["index"], c["function"]["name"]) for c in calls] == [(0, "look")]
    assert choices[-1]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>{not json}</tool_call>",
        '<tool_call>{"name": "burn", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "look", "arguments": "fridge"}</tool_call>',
        "<tool_call>" + "[" * 3000,
    ],
)
def test_what_is_no_call_of_a_given_tool_stays_text(text: str) -> None:
    assert CallParser({"look": {}}).parse(text) == CallParser().parse(text)
    assert CallParser({"look": {}}).parse(text).text == text


async def test_tools_that_may_not_be_called_are_not_shown(folder: Path) -> None:
    service = await service_that_says(CALL, folder)
    choice = (await ask(service, tool_choice="none"))["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": CALL}
    assert "Tools" not in shown(service)[0]


async def test_tool_choice_constrains_a_streamed_answer(folder: Path) -> None:
    service = await service_that_says('{"name": "look", "arguments": {"at": "fridge"}}', folder)
    choices = await streamed(service, tool_choice="required", parallel_tool_calls=False)
    assert not "".join(choice["delta"].get("content", "") for choice in choices)
    (calls,) = [c["delta"]["tool_calls"] for c in choices if "tool_calls" in c["delta"]]
    assert choices[-1]["finish_reason"] == "tool_calls"
    assert json.loads(calls[0]["function"]["arguments"]) == {"at": "fridge"}
    (body,) = service.generate_bodies()
    (schema,) = json.loads(body["sampling_params"]["json_schema"])["anyOf"]
    assert schema["properties"]["name"] == {"const": "look"}


def test_definitions_of_tools_stand_where_their_references_look() -> None:
    def tool(name: str, place: dict[str, Any]) -> Tool:
        at = {"$ref": "#/$defs/Place"}
        parameters = {"type": "object", "properties": {"at": at}, "$defs": {"Place": place}}
        return Tool.model_validate(
            {"type": "function", "function": {"name": name, "parameters": parameters}}
        )

    schema = json.loads(call_schema([tool("a", {"type": "string"}), tool("b", {"type": "string"})]))
    assert schema["$defs"] == {"Place": {"type": "string"}}
    assert all("$defs" not in call["properties"]["arguments"] for call in schema["anyOf"])
    with pytest.raises(InputError, match="two definitions of 'Place'"):
        call_schema([tool("a", {"type": "string"}), tool("b", {"type": "number"})])


DEEP: dict[str, Any] = {}
for _ in range(700):
    DEEP = {"a": DEEP}


@pytest.mark.parametrize(
    ("extra", "sentence"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "burn"}}}, "tool_choice: expected one of the tools: look"),
        ({"tool_choice": "required", "regex": "a"}, "exclude each other"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls = false"),
        ({"tools": [{"type": "function", "function": {"name": "look", "parameters": DEEP}}]}, "nested too deep"),
        ({"messages": [{"role": "assistant", "content": ""}, {"role": "user"}]}, "content: given none"),
        (
            {"messages": [{"role": "user", "content": "", "tool_calls": [{"function": {"name": "look"}}]}]},
            "tool_calls: given by user",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "look", "arguments": "{"}}]}]},
            "the arguments of look are '{', expected JSON",
        ),
    ],
)  # fmt: skip
async def test_refused_tool_request(folder: Path, extra: dict[str, Any], sentence: str) -> None:
    service = await service_that_says(CALL, folder)
    found = await ask(service, **extra)
    assert (found["code"], found["type"]) == (422, "urn:triforge:input"), found
    assert sentence in found["detail"]


async def test_template_without_tools_is_refused(make_service: MakeService) -> None:
    service = await start(make_service, FakeEngine())
    found = await ask(service)
    assert (found["code"], found["type"]) == (422, "urn:triforge:input")
    assert "the chat template of the active model shows none" in found["detail"]


PIECES = st.sampled_from(["a", " ", "\n", "<", "tool_call>", "</tool_call>", CALL, "<tool_call>", "{"])  # fmt: skip


@given(st.lists(PIECES, max_size=8).map("".join))
def test_text_that_was_sent_is_never_taken_back(text: str) -> None:
    parser = CallParser({"look": {}})
    whole = parser.parse(text).text
    shown = [parser.visible(text[:end]) for end in range(len(text) + 1)]
    assert all(later.startswith(earlier) for earlier, later in zip(shown, [*shown[1:], whole]))  # noqa: B905
