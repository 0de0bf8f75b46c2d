"""Pause, continue, abort, flush: the running requests, and the weights of their tokens."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from scripts.real_sglang.exchanges import LONG, PROMPT
from tests.contract.engine.conftest import Engine, scores, tokens


@pytest.fixture
def rid() -> str:
    """A name of its own: SGLang aborts a streamed request's name once more, two seconds after its end."""
    return uuid.uuid4().hex


def long_request(engine: Engine, rid: str) -> AsyncGenerator[Any, None]:
    """A streamed request that runs until it is stopped."""
    body = {
        "input_ids": PROMPT,
        "sampling_params": {"temperature": 0.0, "max_new_tokens": LONG, "ignore_eos": True},
        "return_logprob": True,
        "stream": True,
        "rid": rid,
    }
    return engine.conversation().stream("long", "/generate", body)


async def rest(events: AsyncGenerator[Any, None]) -> Any:
    """The last event."""
    return [event async for event in events][-1]


async def until_version(events: AsyncGenerator[Any, None], version: str) -> Any:
    async for event in events:
        if event["meta_info"]["weight_version"] == version:
            return event
    raise AssertionError(f"no token of version {version}")


def spans(reply: Any) -> list[tuple[str, int, int]]:
    return [(s["version"], s["start"], s["end"]) for s in reply["meta_info"]["weight_versions"]]


@pytest.mark.parametrize("mode", ["in_place", "retract"])
async def test_a_paused_request_goes_on_where_it_was(engine: Engine, mode: str) -> None:
    whole = await engine.generate(PROMPT, max_new_tokens=96)
    body = {
        "input_ids": PROMPT,
        "sampling_params": {"temperature": 0.0, "max_new_tokens": 96, "ignore_eos": True},
        "return_logprob": True,
        "stream": True,
    }
    async with aclosing(engine.conversation().stream("held", "/generate", body)) as events:
        await anext(events)
        await engine.control("/pause_generation", {"mode": mode})
        await engine.control("/continue_generation")
        last = await rest(events)
    assert tokens(last) == tokens(whole)
    assert scores(last) == pytest.approx(scores(whole), abs=2e-3)


@pytest.mark.parametrize("mode", ["in_place", "retract", "abort"])
async def test_a_request_that_comes_during_a_pause_waits(engine: Engine, mode: str) -> None:
    await engine.control("/pause_generation", {"mode": mode})
    waiting = asyncio.create_task(engine.generate(PROMPT))
    done, _ = await asyncio.wait([waiting], timeout=0.3)
    assert not done
    await engine.control("/continue_generation")
    assert len(tokens(await waiting)) == 4


async def test_weights_change_in_place_and_each_token_says_whose_it_is(
    engine: Engine, rid: str
) -> None:
    async with aclosing(long_request(engine, rid)) as events:
        await anext(events)
        await engine.control("/pause_generation", {"mode": "in_place"})
        assert "Flush cache failed" in await engine.control("/flush_cache", status=400)
        body = {
            "model_path": str(engine.folders.other),
            "weight_version": "1",
            "flush_cache": False,
        }
        await engine.control("/update_weights_from_disk", body)
        await engine.control("/continue_generation")
        await until_version(events, "1")
        await engine.control("/abort_request", {"rid": rid})
        last = await rest(events)
    (first, start, end), (second, again, total) = spans(last)
    assert (first, start, second) == ("0", 0, "1")
    assert 0 < end == again < total == len(tokens(last))
    assert last["meta_info"]["num_retractions"] == 0


async def test_a_key_of_its_own_finds_nothing_that_older_weights_have_cached(
    engine: Engine,
) -> None:
    async def asked(key: str) -> Any:
        body = {
            "input_ids": [1, *range(40, 72)],
            "sampling_params": {"temperature": 0.0, "max_new_tokens": 4, "ignore_eos": True},
            "return_logprob": True,
            "extra_key": key,
        }
        return (await engine.post("/generate", body)).json()

    await asked("before")
    await engine.control("/pause_generation", {"mode": "in_place"})
    body = {"model_path": str(engine.folders.other), "weight_version": "1", "flush_cache": False}
    await engine.control("/update_weights_from_disk", body)
    await engine.control("/continue_generation")
    apart = await asked("after")
    await engine.control("/flush_cache")
    fresh = await asked("after")
    assert apart["meta_info"]["cached_tokens"] == 0
    assert tokens(apart) == tokens(fresh)
    assert scores(apart) == pytest.approx(scores(fresh), abs=2e-3)


async def test_a_cache_that_cannot_be_flushed_fails_the_update_and_the_weights_are_new(
    engine: Engine,
    rid: str,
) -> None:
    before = await engine.norm()
    async with aclosing(long_request(engine, rid)) as events:
        await anext(events)
        await engine.control("/pause_generation", {"mode": "in_place"})
        body = {"model_path": str(engine.folders.other), "weight_version": "1", "flush_cache": True}
        reply = await engine.control("/update_weights_from_disk", body, status=400)
        assert "not flushed" in reply["message"]
        assert await engine.norm() != before
        await engine.control("/abort_request", {"rid": rid})
        await engine.control("/continue_generation")
        await rest(events)
    await engine.emptied()
    await engine.load(
        engine.folders.start, "0"
    )  # SGLang's /model_info has not seen the new weights


async def test_retracted_requests_go_on_with_new_weights_and_a_new_cache(
    engine: Engine, rid: str
) -> None:
    async with aclosing(long_request(engine, rid)) as events:
        await anext(events)
        await engine.control("/pause_generation", {"mode": "retract"})
        await engine.control("/flush_cache")
        await engine.load(engine.folders.other, "1")
        await engine.control("/continue_generation")
        await until_version(events, "1")
        await engine.control("/abort_request", {"rid": rid})
        last = await rest(events)
    assert [version for version, _, _ in spans(last)] == ["0", "1"]
    assert last["meta_info"]["num_retractions"] >= 1


async def test_a_pause_that_aborts_ends_requests_with_what_they_had(
    engine: Engine, rid: str
) -> None:
    async with aclosing(long_request(engine, rid)) as events:
        await anext(events)
        await engine.control("/pause_generation", {"mode": "abort"})
        last = await rest(events)
    await engine.control("/continue_generation")
    assert last["meta_info"]["finish_reason"]["type"] == "abort"
    assert 0 < len(tokens(last)) == len(scores(last)) < LONG


async def test_one_request_is_aborted_and_the_other_goes_on(engine: Engine, rid: str) -> None:
    async with (
        aclosing(long_request(engine, f"{rid}-1")) as one,
        aclosing(long_request(engine, f"{rid}-2")) as two,
    ):
        await asyncio.gather(anext(one), anext(two))
        await engine.control("/abort_request", {"rid": f"{rid}-1"})
        ended = await rest(one)
        assert ended["meta_info"]["finish_reason"]["type"] == "abort"
        before = len(tokens(await anext(two)))
        assert len(tokens(await anext(two))) > before
        await engine.control("/abort_request", {"abort_all": True})
        assert (await rest(two))["meta_info"]["finish_reason"]["type"] == "abort"


async def test_two_pauses_need_one_continue(engine: Engine) -> None:
    for _ in range(2):
        await engine.control("/pause_generation", {"mode": "retract"})
    await engine.control("/continue_generation")
    assert len(tokens(await engine.generate(PROMPT))) == 4
    await engine.control("/continue_generation")
    assert len(tokens(await engine.generate(PROMPT))) == 4


async def test_memory_that_was_released_holds_what_is_loaded_after_it_is_back(
    engine: Engine,
) -> None:
    before = await engine.generate(PROMPT)
    await engine.control("/pause_generation", {"mode": "abort"})
    await engine.control("/release_memory_occupation")
    await engine.control("/resume_memory_occupation")
    await engine.load(engine.folders.start, "0")
    await engine.control("/continue_generation")
    after = await engine.generate(PROMPT)
    assert tokens(after) == tokens(before)
    assert scores(after) == pytest.approx(scores(before), abs=2e-3)
