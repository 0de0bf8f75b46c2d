"""Sessions as agents use them: OpenAI's own client, rewards, and errors."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from tokenizers import Tokenizer

from services.env_adapter.sessions.routes import Sessions
from services.env_adapter.sessions.store import SessionStore
from tests.chat_families import FAMILIES
from tests.service.session_services import END, Services, services
from triforge.broker.sessions import SessionLog, Turns
from triforge.store.tables import SessionRow
from triforge.testing.pictures import png
from triforge.types import SessionReward, Task
from triforge.vision.files import data_uri, describe

ASK: list[Any] = [{"role": "system", "content": "Help."}, {"role": "user", "content": "What is in the fridge?"}]  # fmt: skip
LOOK: Any = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "fridge"}}\n</tool_call>'


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[Services]:
    async with services(tmp_path) as found:
        yield found


async def chat(client: openai.AsyncOpenAI, messages: list[Any], **more: Any) -> Any:
    """The first message of an answer, streamed or not, as an agent sends it back."""
    if more.pop("stream", False):
        async with client.chat.completions.stream(model="any", messages=messages, **more) as events:
            reply_message: Any = (await events.get_final_completion()).choices[0].message
    else:
        answer = await client.chat.completions.create(model="any", messages=messages, **more)
        reply_message = answer.choices[0].message
    return reply_message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True)


@pytest.mark.parametrize("stream", [False, True])
async def test_what_was_sampled_is_never_tokenised_again(both: Services, stream: bool) -> None:
    made = await both.begin()
    # bytes that the tokenizer would join, as no renderer would write them
    odd = [token for letter in "count" for token in both.renderer.encode_text(letter)]
    assert odd != both.renderer.encode_text("count")
    both.engine.answer = lambda *_: [*odd, END]
    async with both.client(made) as client:
        reply_message = await chat(client, ASK, tools=[LOOK], stream=stream)
        assert reply_message["content"] == "count"
        both.says(f"Let me see.\n{CALL}")
        history = [*ASK, reply_message, {"role": "user", "content": "Look!"}]
        called = await chat(client, history, tools=[LOOK], stream=stream)
        result = {"role": "tool", "tool_call_id": called["tool_calls"][0]["id"], "content": "a cup"}
        both.says("A cup.")
        last = await chat(client, [*history, called, result], tools=[LOOK], stream=stream)
    assert last["content"] == "A cup."
    one, two, three = await both.turns(made)
    assert [turn.parent for turn in (one, two, three)] == [None, "1.0", "2.0"]
    assert list(one.output.ids) == [*odd, END]
    prompt = list(one.new_ids)
    for turn, served in zip((one, two, three), both.prompts(), strict=True):
        assert served == (prompt if turn is one else [*prompt, *turn.new_ids])
        prompt = [*served, *turn.output.ids]
        assert len(turn.output.logprobs) == len(turn.output.ids)
        assert {span.version for span in turn.output.versions} == {4}
    text = both.renderer.decode(both.prompts()[2], skip_special_tokens=False)
    assert f"{CALL}<|im_end|>\n<|im_start|>tool\na cup<|im_end|>\n<|im_start|>assistant\n" in text
    assert (three.observation, one.system) == ("a cup", "Help.")


async def test_forks_parallel_calls_and_side_calls_are_lineages_of_their_own(
    both: Services,
) -> None:
    made = await both.begin()
    both.says("one", "two", "three", "a title", "compacted")
    async with both.client(made) as client:
        answer = await client.chat.completions.create(model="m", messages=ASK, n=2)
        first, second = (choice.message.content for choice in answer.choices)
        more = {"role": "user", "content": "Go on."}
        await asyncio.gather(
            chat(client, [*ASK, {"role": "assistant", "content": first}, more]),
            chat(client, [*ASK, {"role": "assistant", "content": second}, more]),
            chat(client, [{"role": "user", "content": "A title?"}]),
        )
        await chat(client, [{"role": "user", "content": "Summary: a fridge."}, more])
    turns = await both.turns(made)
    parents = {turn.id: turn.parent for turn in turns}
    assert [parents["1.0"], parents["1.1"]] == [None, None]
    assert sorted(str(parents[f"{n}.0"]) for n in (2, 3, 4)) == ["1.0", "1.1", "None"]
    assert parents["5.0"] is None


async def test_a_repeated_request_gets_the_same_answer_and_no_second_sample(both: Services) -> None:
    made, key = await both.begin(), {"Idempotency-Key": "k1"}
    both.says(f"one\n{CALL}", "two")
    async with both.client(made) as client:
        whole = [
            await client.chat.completions.create(
                model="m", messages=ASK, tools=[LOOK], extra_headers=key
            )
            for _ in range(2)
        ]
        assert whole[0].choices == whole[1].choices
        assert whole[0].id == whole[1].id
        for _ in range(2):
            streamed = await chat(client, ASK, stream=True, extra_headers={"Idempotency-Key": "k2"})
            assert streamed["content"] == "two"
        with pytest.raises(openai.ConflictError, match="another request"):
            await chat(client, [*ASK, *ASK], extra_headers=key)
        third = {"Idempotency-Key": "k3"}
        more = [chat(client, ASK, stream=stream, extra_headers=third) for stream in (True, True)]
        assert [reply_message["content"] for reply_message in await asyncio.gather(*more)] == [
            "two",
            "two",
        ]
    assert len(both.prompts()) == 3
    assert len(await both.turns(made)) == 3


async def test_a_turn_takes_two_round_trips_and_one_more_for_what_others_have_answered(
    both: Services,
) -> None:
    made = await both.begin()
    both.says("one", "two", "three")
    more = {"role": "user", "content": "Go on."}
    async with both.another_policy() as url, both.client(made) as here, both.client(made, url) as there:  # fmt: skip
        history = [*ASK, await chat(here, ASK), more]
        both.broker.trips.clear()
        history += [await chat(here, history), more]
        assert both.broker.trips == ["count", "put"]
        both.broker.trips.clear()
        await chat(there, history)  # finds the session, counts, reads two turns, keeps the third
        assert both.broker.trips == ["get", "count", "get", "put"]
    assert [turn.parent for turn in await both.turns(made)] == [None, "1.0", "2.0"]


# ---- rewards ----


async def test_a_reward_is_kept_with_its_turns_and_given_once(both: Services) -> None:
    made = await both.begin(tags={"who": "me"})
    both.says("one")
    async with both.client(made) as client:
        answer = await client.chat.completions.create(model="m", messages=ASK)
    reward = {"score": 0.5, "steps": {answer.id: 0.25}}
    given = await both.tell(made, "reward", **reward)
    assert given.status_code == 200, given.text
    assert given.json()["status"] == "finished"
    assert given.json()["tags"] == {"who": "me"}
    before = await both.turns(made)
    both.broker._texts.clear()  # Redis has lost everything
    assert (await both.tell(made, "reward", **reward)).json() == given.json()
    assert await both.turns(made) == before
    other = await both.tell(made, "reward", score=1.0)
    assert other.status_code == 409
    assert other.json()["type"] == "urn:triforge:conflict"


async def test_turns_are_forgotten_long_after_a_session_and_its_reward_stays(
    both: Services,
) -> None:
    made, young = await both.begin(), await both.begin()
    both.says("one")
    for each in (made, young):
        async with both.client(each) as client:
            await chat(client, ASK)
        assert (await both.tell(each, "reward", score=0.5)).status_code == 200
    with both.database.write() as session:
        session.get_one(SessionRow, made.session.id).expires_at -= 2 * 86_400
    SessionStore(both.database).prune(86_400.0)
    assert len(await both.turns(young)) == 1
    gone = await both.tell(made, "trace")
    assert gone.status_code == 404
    assert (await both.tell(made, "reward", score=0.5)).status_code == 200
    assert (await both.tell(made, "reward", score=1.0)).status_code == 409


async def test_an_agent_may_go_on_after_its_reward(both: Services) -> None:
    made = await both.begin()
    both.says("one", "two")
    async with both.client(made) as client:
        await chat(client, ASK)
        found = await both.tell(made, "reward", success=True, end=False)
        assert found.json()["status"] == "open"
        await chat(client, ASK)
        assert (await both.tell(made, "end")).json()["status"] == "finished"
        with pytest.raises(openai.ConflictError, match="is over: it was ended"):
            await chat(client, ASK)
    assert len(await both.turns(made)) == 2


async def test_what_an_agent_asks_after_its_reward_is_kept_when_the_reward_is_given_again(
    both: Services,
) -> None:
    made = await both.begin()
    both.says("one", "two")
    async with both.client(made) as client:
        await chat(client, ASK)
        await both.tell(made, "reward", score=0.5, end=False)
        await chat(client, ASK)
    given = await asyncio.gather(*(both.tell(made, "reward", score=0.5) for _ in range(8)))
    assert {(reply.status_code, reply.json()["status"]) for reply in given} == {(200, "finished")}
    assert len(await both.turns(made)) == 2


async def test_a_reward_that_is_given_while_the_same_is_being_kept_is_acknowledged(
    both: Services,
) -> None:
    made = await both.begin()
    both.says("one")
    async with both.client(made) as client:
        await chat(client, ASK)

    def no_task(task_id: str) -> Task:
        raise AssertionError(task_id)

    class Slow(SessionLog):
        async def all(self, session_id: str) -> Turns:
            assert (await both.tell(made, "reward", score=0.5)).status_code == 200
            return await super().all(session_id)

    store = SessionStore(both.database)
    slow = Sessions(store, Slow(both.broker), no_task, "")
    state = await slow.reward_session(made.session.id, SessionReward(score=0.5), made.key)
    assert state.status == "finished"
    assert len(await both.turns(made)) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("verb", "body"), [("reward", {"score": 0.5}), ("end", {})])
async def test_an_answer_that_comes_after_the_end_of_its_session_is_refused_and_not_kept(
    both: Services, verb: str, body: Any, stream: bool
) -> None:
    made = await both.begin()
    both.says("one", "two")
    async with both.client(made) as client:
        await chat(client, ASK)
        both.engine.pause_s = 0.2  # a token
        late = asyncio.create_task(chat(client, ASK, stream=stream))
        async with asyncio.timeout(10):
            while not both.engine.running:  # noqa: ASYNC110 (the engine counts)
                await asyncio.sleep(0.01)
        assert (await both.tell(made, verb, **body)).status_code == 200
        with pytest.raises((openai.ConflictError, openai.APIError), match="is over"):
            await late
    if verb == "end":
        assert (await both.tell(made, "reward", score=0.5)).status_code == 200
    assert [turn.output.text for turn in await both.turns(made)] == ["one"]


async def test_answers_between_a_reward_and_the_end_of_time_are_kept(both: Services) -> None:
    made = await both.begin()
    both.says("one", "two")
    async with both.client(made) as client:
        await chat(client, ASK)
        await both.tell(made, "reward", score=0.5, end=False)
        await chat(client, ASK)
        with both.database.write() as session:
            session.get_one(SessionRow, made.session.id).expires_at = time.time() - 1
        assert (await both.tell(made, "")).json()["status"] == "finished"
        with pytest.raises(openai.ConflictError, match="is over"):
            await chat(client, ASK)
    assert len(await both.turns(made)) == 2


async def test_a_session_expires_by_one_clock_and_not_by_that_of_each_service(
    both: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await both.begin(lifetime_s=600)
    both.says("one")
    now = time.time
    async with both.client(made) as client:
        for hour in (3600, -3600):
            monkeypatch.setattr(time, "time", lambda hour=hour: now() + hour)
            await chat(client, ASK)
            assert (await both.tell(made, "")).json()["status"] == "open"
        later = await both.begin(lifetime_s=600)
        async with both.client(later) as other:
            monkeypatch.undo()
            await chat(other, ASK)
        brief = await both.begin(lifetime_s=0.05)
        await asyncio.sleep(0.1)
        async with both.client(brief) as other:
            with pytest.raises(openai.ConflictError, match="expired"):
                await chat(other, ASK)


ODD = [r'{"at": "\ud83d"}', '{"at": NaN}', '{"at": 1e999}', '{"at": ' + "[" * 99 + "]" * 99 + "}"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("arguments", ODD)
async def test_a_call_that_no_encoder_takes_is_text_that_continues_its_lineage(
    both: Services, arguments: str, stream: bool
) -> None:
    made = await both.begin()
    call = '<tool_call>\n{"name": "look", "arguments": ' + arguments + "}\n</tool_call>"
    both.says(call, "two")
    async with both.client(made) as client:
        answered = await chat(client, ASK, tools=[LOOK], stream=stream, max_tokens=1000)
        assert answered["content"] == call
        assert not answered.get("tool_calls")
        await chat(client, [*ASK, answered, {"role": "user", "content": "Look!"}], tools=[LOOK])
        called = {"id": "c", "type": "function", "function": {"name": "look", "arguments": arguments}}  # fmt: skip
        sent: Any = [*ASK, {"role": "assistant", "content": "", "tool_calls": [called]}]
        with pytest.raises(openai.UnprocessableEntityError, match="expected JSON"):
            await chat(client, sent, tools=[LOOK])
    assert [turn.parent for turn in await both.turns(made)] == [None, "1.0"]


async def test_ids_of_calls_are_nine_letters_and_digits_and_stay_the_same(both: Services) -> None:
    made, key = await both.begin(), {"Idempotency-Key": "k"}
    both.says(f"{CALL}\n{CALL}")
    async with both.client(made) as client:
        first, again = [
            await chat(client, ASK, tools=[LOOK], max_tokens=300, extra_headers=key)
            for _ in range(2)
        ]
        other = await chat(client, ASK, tools=[LOOK], max_tokens=300)
    ids = [[call["id"] for call in answered["tool_calls"]] for answered in (first, again, other)]
    assert ids[0] == ids[1]
    assert len({*ids[0], *ids[2]}) == 4
    assert all(re.fullmatch("[a-z0-9]{9}", name) for name in (*ids[0], *ids[2]))


async def test_what_is_wrong_gets_one_sentence_and_loses_nothing(both: Services) -> None:
    made, other = await both.begin(), await both.begin()
    url = f"/v1/sessions/{made.session.id}"

    async def detail_of(verb: str, status: int, **body: Any) -> str:
        reply = await both.tell(made, verb, **body)
        assert reply.status_code == status, reply.text
        assert reply.headers["content-type"] == "application/problem+json"
        return str(reply.json()["detail"])

    assert "has sampled nothing" in await detail_of("reward", 409, score=1.0)
    assert "expected `score`, `success` or `steps`" in await detail_of("reward", 422)
    bound = "expected a number from -1e+12 to 1e+12: divide larger ones by a constant"
    for wrong in (1e308, -1e154, 10**400, "1.0", {"a": 1}, [1.0]):
        assert f"score: {bound}" in await detail_of("reward", 422, score=wrong)
        assert f"steps.1: {bound}" in await detail_of("reward", 422, steps={"1": wrong})
        named = {"score": 1.0, "metrics": {"seconds": wrong}}
        assert f"metrics.seconds: {bound}" in await detail_of("reward", 422, **named)
    stranger = {"authorization": f"Bearer {other.key}"}
    refused = await both.env.get(url, headers=stranger)
    assert (refused.status_code, refused.json()["detail"]) == (401, f"this is not the key of session {made.session.id}")  # fmt: skip
    unknown = await both.env.get("/v1/sessions/0123456789ab")
    assert (unknown.status_code, unknown.json()["detail"]) == (404, "session '0123456789ab' does not exist")  # fmt: skip
    both.says("one")
    async with both.client(made) as client:
        await chat(client, ASK)
        assert "expected ids of this session's responses" in await detail_of("reward", 422, steps={"7": 1.0})  # fmt: skip
        with pytest.raises(openai.UnprocessableEntityError, match=r"body\.colour: unknown field"):
            await chat(client, ASK, extra_body={"colour": "red"})
        image = {
            "type": "image_url",
            "image_url": {"url": data_uri(describe(png(28, 28)), png(28, 28))},
        }
        for tools in ({}, {"tools": [LOOK]}):
            with pytest.raises(openai.UnprocessableEntityError, match="no vision model"):
                await chat(client, [{"role": "user", "content": [image]}], **tools)
        with pytest.raises(openai.AuthenticationError, match="not the key of session"):
            await chat(client.with_options(api_key=other.key), ASK)
        with pytest.raises(openai.AuthenticationError, match="not the key of session"):
            await chat(client.with_options(api_key="tfk_000000000000_a"), ASK)
        lost = client.with_options(base_url=made.base_url.replace(made.session.id, "f" * 12))
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            await chat(lost, ASK)
        with both.database.write() as session:
            session.get_one(SessionRow, made.session.id).expires_at = time.time() - 1
    assert "no reward came before it expired" in await detail_of("reward", 409, score=1.0)
    assert len(await both.turns(made)) == 1


async def test_what_clients_add_to_an_answer_of_ours_is_taken_back(both: Services) -> None:
    made = await both.begin()
    both.says("one", "two")
    async with both.client(made) as client:
        reply_message = await chat(client, ASK) | {
            "provider_specific_fields": {"refusal": None}
        }  # litellm
        await chat(client, [*ASK, reply_message, {"role": "user", "content": "Go on."}])
    assert [turn.parent for turn in await both.turns(made)] == [None, "1.0"]


async def test_a_body_that_is_no_dialect_is_refused(both: Services) -> None:
    made = await both.begin()
    headers = {"authorization": f"Bearer {made.key}"}
    async with httpx.AsyncClient(headers=headers) as http:
        for body in ("[]", "{}", '{"messages": 3}', "{", json.dumps({"messages": []})):
            reply = await http.post(f"{made.base_url}/chat/completions", content=body, headers={"content-type": "application/json"})  # fmt: skip
            assert reply.status_code == 422, reply.text
        found = await http.get(f"{made.base_url}/models")
        assert [card["id"] for card in found.json()["data"]] == ["policy"]
    assert await both.turns(made) == ()


# What a model samples, and what clients get: text, and whether it calls.
SAMPLED = {
    "gpt-oss": (
        "<|channel|>analysis<|message|>to=functions.look?<|end|><|start|>assistant<|channel|>commentary to=functions.look "
        '<|constrain|>json<|message|>{"at": "fridge"}<|call|>',
        "<|channel|>final<|message|>A cup.<|return|>",
        "",
    ),
    "mistral-tekken": ('Let me see.[TOOL_CALLS]look[ARGS]{"at": "fridge"}</s>', "A cup.</s>", "Let me see."),
    "qwq": (f"I may {CALL}\n</think>\n{CALL}<|im_end|>", "</think>A cup.<|im_end|>", f"I may {CALL}\n</think>"),
}  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("family", SAMPLED)
async def test_calls_in_the_form_of_the_template_continue_a_lineage(
    tmp_path: Path, family: str, stream: bool
) -> None:
    folder = FAMILIES[family].write(tmp_path / "model")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    *answered, text = SAMPLED[family]
    left = [tokenizer.encode(one, add_special_tokens=False).ids for one in answered]
    async with services(tmp_path, folder) as both:
        made = await both.begin()
        both.engine.answer = lambda *_: left.pop(0)
        more: Any = {"tools": [LOOK], "stream": stream, "max_tokens": 1000}
        async with both.client(made) as client:
            ask = ASK[1:]
            called = await chat(client, ask, **more)
            assert (called.get("content") or "") == text
            (call,) = called["tool_calls"]
            assert json.loads(call["function"]["arguments"]) == {"at": "fridge"}
            result = {"role": "tool", "tool_call_id": call["id"], "content": "a cup"}
            last = await chat(client, [*ask, called, result], **more)
        assert last["content"].endswith("A cup.")
        turns = await both.turns(made)
        assert [turn.parent for turn in turns] == [None, "1.0"]
