"""Answers to prompts: tokens, their probabilities, why they ended, and the same as a stream."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from scripts.real_sglang.exchanges import PROMPT
from tests.contract.engine.conftest import Engine, scores, tokens

END = 2  # the end token of both models


async def test_as_many_tokens_come_as_were_asked_for(engine: Engine) -> None:
    reply = await engine.generate(PROMPT, max_new_tokens=5)
    meta = reply["meta_info"]
    assert len(tokens(reply)) == meta["completion_tokens"] == 5
    assert meta["finish_reason"] == {"type": "length", "length": 5}
    assert meta["prompt_tokens"] == len(PROMPT)
    assert meta["weight_version"] == "0"
    assert meta["weight_versions"] == [{"version": "0", "start": 0, "end": 5}]


async def test_every_token_comes_with_the_logarithm_of_its_probability(engine: Engine) -> None:
    reply = await engine.generate(PROMPT)
    pairs = reply["meta_info"]["output_token_logprobs"]
    assert [token for _, token, _ in pairs] == tokens(reply)
    assert all(logprob <= 0 for logprob in scores(reply))
    assert (
        "output_token_logprobs" not in (await engine.generate(PROMPT, logprobs=False))["meta_info"]
    )


async def test_the_greedy_token_is_the_likeliest_one(engine: Engine) -> None:
    body = {
        "input_ids": PROMPT,
        "sampling_params": {"temperature": 0.0, "max_new_tokens": 3, "ignore_eos": True},
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": 2,
    }
    reply = (await engine.post("/generate", body)).json()
    meta = reply["meta_info"]
    assert [row[0][1] for row in meta["output_top_logprobs"]] == tokens(reply)
    assert [token for _, token, _ in meta["input_token_logprobs"]] == PROMPT
    assert meta["input_token_logprobs"][0][0] is None, "nothing comes before the first token"
    assert all(logprob < 0 for logprob, _, _ in meta["input_token_logprobs"][1:])


async def test_what_was_replied_is_scored_the_same_when_it_is_read_back(engine: Engine) -> None:
    reply = await engine.generate(PROMPT, max_new_tokens=6)
    body = {
        "input_ids": PROMPT + tokens(reply),
        "sampling_params": {"temperature": 0.0, "max_new_tokens": 1},
        "return_logprob": True,
        "logprob_start_len": 0,
    }
    read = (await engine.post("/generate", body)).json()["meta_info"]["input_token_logprobs"]
    assert [row[0] for row in read[len(PROMPT) :]] == pytest.approx(scores(reply), abs=2e-3)


async def test_n_samples_are_a_list(engine: Engine) -> None:
    replies = await engine.generate(PROMPT, n=3)
    assert len(replies) == 3
    assert len({reply["meta_info"]["id"] for reply in replies}) == 3
    assert {tuple(tokens(reply)) for reply in replies} == {tuple(tokens(replies[0]))}, "greedy"
    drawn = await engine.generate(PROMPT, n=4, temperature=1.0, max_new_tokens=12)
    assert len({tuple(tokens(reply)) for reply in drawn}) > 1, "sampled"


async def test_a_batch_is_answered_in_its_order(engine: Engine) -> None:
    prompts = [PROMPT, PROMPT[:2], PROMPT[:3]]
    body = {
        "input_ids": prompts,
        "sampling_params": [
            {"temperature": 0.0, "max_new_tokens": n, "ignore_eos": True} for n in (2, 3, 4)
        ],
        "rid": ["first", "second", "third"],
        "return_logprob": True,
    }
    replies = (await engine.post("/generate", body)).json()
    assert [reply["meta_info"]["id"] for reply in replies] == ["first", "second", "third"]
    assert [len(tokens(reply)) for reply in replies] == [2, 3, 4]
    for prompt, reply in zip(prompts, replies, strict=True):
        alone = await engine.generate(prompt, max_new_tokens=len(tokens(reply)))
        assert tokens(reply) == tokens(alone)
        assert scores(reply) == pytest.approx(scores(alone), abs=2e-3)


async def test_many_requests_at_once_are_all_answered(engine: Engine) -> None:
    prompts = [[1, 40 + n, 82] for n in range(24)]
    replies = await asyncio.gather(*(engine.generate(p, max_new_tokens=3) for p in prompts))
    assert [len(tokens(reply)) for reply in replies] == [3] * len(prompts)


async def test_an_end_token_stops_and_is_named(engine: Engine) -> None:
    reply = await engine.generate(PROMPT, regex="abc", max_new_tokens=9, ignore_eos=False)
    assert reply["text"] == "abc"
    assert tokens(reply)[-1] == END
    assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": END}


async def test_a_stop_token_of_the_request_stops(engine: Engine) -> None:
    free = await engine.generate(PROMPT)
    wanted = tokens(free)[1]
    first = tokens(free).index(wanted)
    held = await engine.generate(PROMPT, stop_token_ids=[wanted], ignore_eos=False)
    assert tokens(held) == tokens(free)[: first + 1]
    assert held["meta_info"]["finish_reason"] == {"type": "stop", "matched": wanted}


async def test_a_stop_string_is_cut_off_the_text_and_not_off_the_tokens(engine: Engine) -> None:
    reply = await engine.generate(PROMPT, regex="abcab", stop=["ca"], max_new_tokens=9)
    assert reply["text"] == "ab"
    assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": "ca"}
    assert len(tokens(reply)) == reply["meta_info"]["completion_tokens"] > 1


async def test_an_answer_that_ends_with_its_last_allowed_token_is_whole(engine: Engine) -> None:
    for params in ({"regex": "abc", "ignore_eos": False}, {"regex": "abcab", "stop": ["ca"]}):
        free = await engine.generate(PROMPT, max_new_tokens=9, **params)
        held = await engine.generate(PROMPT, max_new_tokens=len(tokens(free)), **params)
        assert tokens(held) == tokens(free)
        finish = held["meta_info"]["finish_reason"]
        assert finish["type"] == "stop"
        assert finish == free["meta_info"]["finish_reason"]


async def test_a_grammar_that_is_finished_by_the_last_token_is_whole_to_the_local_engine(
    engine: Engine,
) -> None:
    params = {"json_schema": '{"const": "ab"}', "ignore_eos": False}
    free = await engine.generate(PROMPT, max_new_tokens=9, **params)
    whole = len(tokens(free)) - 1  # without the end token
    held = await engine.generate(PROMPT, max_new_tokens=whole, **params)
    assert held["text"] == free["text"] == '"ab"'
    says = {"type": "length", "length": whole} if engine.served.real else {"type": "stop", "matched": None}  # fmt: skip
    assert held["meta_info"]["finish_reason"] == says


async def test_a_stop_string_may_be_a_special_token(engine: Engine) -> None:
    reply = await engine.generate(PROMPT, regex="abc", stop=["<|im_end|>"], max_new_tokens=9)
    assert reply["text"] == "abc"
    assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": "<|im_end|>"}


async def test_the_text_of_a_stream_only_grows_and_holds_back_a_stop_string(
    engine: Engine,
) -> None:
    sampling = {"temperature": 0.0, "max_new_tokens": 24, "regex": "a 😀 béSTO", "stop": ["STOP"]}
    body = {"input_ids": PROMPT, "sampling_params": sampling, "return_logprob": True, "stream": True}  # fmt: skip
    talk = engine.conversation()
    texts = [event["text"] async for event in talk.stream("stream", "/generate", body)]
    for before, after in pairwise(texts):
        assert after.startswith(before)
    assert not [text for text in texts if "\ufffd" in text]
    assert not any(text.endswith("S") for text in texts)
    assert texts[-1] == "a 😀 béSTO"


async def test_a_regex_holds_the_answer(engine: Engine) -> None:
    reply = await engine.generate(
        PROMPT, regex=r"\\boxed\{-?1\}", max_new_tokens=12, ignore_eos=False
    )
    assert reply["text"] in (r"\boxed{1}", r"\boxed{-1}")


async def test_a_seed_is_taken_and_the_local_engine_keeps_to_it(engine: Engine) -> None:
    seeded = {"temperature": 1.0, "max_new_tokens": 8, "sampling_seed": 7}
    first, second = [await engine.generate(PROMPT, **seeded) for _ in range(2)]
    assert len(tokens(first)) == len(tokens(second)) == 8
    if (
        not engine.served.real
    ):  # SGLang without a GPU draws anew each time: docs/operate.md#sglang-and-gpus
        assert tokens(first) == tokens(second)


async def test_a_stream_says_what_a_single_answer_says(engine: Engine) -> None:
    whole = await engine.generate(PROMPT, max_new_tokens=6)
    body = {
        "input_ids": PROMPT,
        "sampling_params": {"temperature": 0.0, "max_new_tokens": 6, "ignore_eos": True},
        "return_logprob": True,
        "stream": True,
    }
    talk = engine.conversation()
    events = [event async for event in talk.stream("stream", "/generate", body)]
    sizes = [len(tokens(event)) for event in events]
    assert sizes == sorted(sizes)
    assert [event["meta_info"]["finish_reason"] for event in events[:-1]] == [None] * (
        len(events) - 1
    )
    last = events[-1]
    assert tokens(last) == tokens(whole)
    assert last["text"] == whole["text"]
    assert last["meta_info"]["finish_reason"] == {"type": "length", "length": 6}


async def test_a_prefix_that_was_seen_comes_from_the_cache_until_it_is_flushed(
    engine: Engine,
) -> None:
    await engine.control("/flush_cache")
    prompt = [1, *range(40, 60)]
    assert (await engine.generate(prompt))["meta_info"]["cached_tokens"] == 0
    assert (await engine.generate(prompt))["meta_info"]["cached_tokens"] > 0
    await engine.control("/flush_cache")
    assert (await engine.generate(prompt))["meta_info"]["cached_tokens"] == 0
