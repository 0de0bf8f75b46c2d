"""The promises of `Engine`, kept by each kind of engine: the local one and SGLang behind SGLang's API, and vLLM.

`make test-vllm` runs these tests against real vLLM, with ENGINE_URL=vllm+http://....
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from scripts.real_sglang.exchanges import LONG, PROMPT
from scripts.real_sglang.folders import truncated
from services.policy.engines.discovery import VLLM
from services.policy.engines.protocol import Engine, EngineInfo, Extras, Partial, Prompt, Sample
from services.policy.engines.sglang import SGLangEngine
from services.policy.engines.vllm import VLLMEngine
from tests.contract.engine.conftest import Served
from tests.unit.local_engine.adapters import build_adapter
from tests.unit.local_engine.models import edit_weights, plain_logprobs, plain_model
from triforge.config.base import Sampling
from triforge.errors import ContextFullError, InputError, PolicyError, WeightsError
from triforge.types import VersionSpan

END = 2  # the end token of both models
GREEDY = Sampling(temperature=0.0, max_new_tokens=6)


@pytest.fixture
async def engine(served: Served) -> AsyncIterator[Engine]:
    """The engine as the policy service calls it, with its first weights as version 0."""
    kind = VLLMEngine if served.url.startswith(VLLM) else SGLangEngine
    found = kind(served.url, api_key=served.api_key, admin_api_key=served.admin_key)
    try:
        await found.resume()
        await found.abort_all()
        if await found.info() != EngineInfo(0, str(served.folders.start)):
            await load(found, served.folders.start, 0)
        await found.health()
        yield found
    finally:
        await found.close()


async def load(engine: Engine, folder: Path, version: int) -> None:
    await engine.pause("retract")
    try:
        await engine.load_folder(str(folder), version, flush=True)
    finally:
        await engine.resume()


async def ask(engine: Engine, prompt: Prompt, adapter: str = "") -> Sample:
    (sample,) = await engine.generate([prompt], adapter)
    return sample


async def parts(engine: Engine, prompt: Prompt) -> list[Partial]:
    return [piece async for piece in engine.stream(prompt)]


def greedy(**options: object) -> Prompt:
    return Prompt(PROMPT, GREEDY.model_copy(update=options))


async def test_an_answer_has_its_tokens_with_their_logprobs_and_versions(engine: Engine) -> None:
    await load(engine, Path((await engine.info()).model_path), 3)
    sample = await ask(engine, greedy())
    output = sample.output
    assert (output.finish, len(output.ids), len(output.logprobs)) == ("length", 6, 6)
    assert all(logprob <= 0 for logprob in output.logprobs)
    assert output.versions == (VersionSpan(version=3, start=0, end=6),)
    assert sample.prompt_tokens == len(PROMPT)


async def test_a_batch_is_answered_in_order_and_samples_of_a_prompt_differ(engine: Engine) -> None:
    drawn = Prompt(
        PROMPT[:3], GREEDY.model_copy(update={"temperature": 1.0, "max_new_tokens": 9}), n=3
    )
    samples = await engine.generate([greedy(), drawn, greedy(max_new_tokens=2)])
    assert [len(s.output.ids) for s in samples] == [6, 9, 9, 9, 2]
    assert len({s.output.ids for s in samples[1:4]}) > 1
    assert samples[4].output.ids == samples[0].output.ids[:2]


async def test_logprobs_are_at_the_temperature_of_the_request(engine: Engine) -> None:
    (one, two) = [
        await ask(engine, replace(greedy(temperature=t, max_new_tokens=1), extras=Extras(top_logprobs=20)))
        for t in (1.0, 2.0)
    ]  # fmt: skip
    (first, best), (second, next_best) = one.tops[0][:2]
    (flat_first, flat_best), (flat_second, flat_next) = two.tops[0][:2]
    assert (best, next_best) == (flat_best, flat_next)
    assert flat_first - flat_second == pytest.approx((first - second) / 2, abs=1e-3)
    for sample in (one, two):
        known = {token: logprob for logprob, token in sample.tops[0]}
        (token,), (logprob,) = sample.output.ids, sample.output.logprobs
        assert logprob == pytest.approx(known.get(token, logprob), abs=1e-6)


async def test_an_answer_that_is_read_back_has_the_same_logprobs(engine: Engine) -> None:
    output = (await ask(engine, greedy())).output
    logprobs, version = await engine.prompt_logprobs([*PROMPT, *output.ids], "")
    assert version == 0
    assert logprobs[len(PROMPT) - 1 :] == pytest.approx(output.logprobs, abs=2e-3)


ENDS = {
    "a stop token": ({"regex": "abc"}, 9, "abc", "stop"),
    "a stop token as the last one": ({"regex": "abc"}, 0, "abc", "stop"),
    "a stop string": ({"regex": "abcab", "stop": ("ca",)}, 9, "ab", "stop"),
    "a stop string as the last one": ({"regex": "abcab", "stop": ("ca",)}, 0, "ab", "stop"),
    "a grammar": ({"json_schema": '{"const": "ab"}'}, 9, '"ab"', "stop"),
    "the length": ({"regex": "[a-z]{99}"}, 4, "", "length"),
}


@pytest.mark.parametrize(("options", "most", "text", "finish"), ENDS.values(), ids=ENDS)
async def test_an_answer_ends_with(
    engine: Engine, options: dict[str, object], most: int, text: str, finish: str
) -> None:
    async def asked(most: int) -> Partial:
        prompt = replace(greedy(max_new_tokens=most, **options), stop_ids=(END,))
        sample, pieces = await ask(engine, prompt), await parts(engine, prompt)
        last = pieces[-1].output()
        # what a cache gave is summed in another order
        assert last.logprobs == pytest.approx(sample.output.logprobs, abs=1e-4)
        assert last == sample.output.model_copy(update={"logprobs": last.logprobs})
        for before, after in pairwise(pieces):
            assert after.text.startswith(before.text)
        return pieces[-1]

    free = await asked(most or 9)
    held = free if most else await asked(len(free.ids))
    assert (held.finish, held.ids) == (finish, free.ids)
    assert held.text == (text or free.text)


async def test_a_grammar_that_is_finished_by_the_last_allowed_token_is_whole(
    engine: Engine,
) -> None:
    prompt = replace(greedy(json_schema='{"const": "ab"}', max_new_tokens=9), stop_ids=(END,))
    free = (await ask(engine, prompt)).output
    shorter = prompt.sampling.model_copy(update={"max_new_tokens": len(free.ids) - 1})
    held = (await ask(engine, replace(prompt, sampling=shorter))).output
    assert (held.finish, held.text) == ("stop", '"ab"')


async def test_a_bias_and_a_seed_are_kept(engine: Engine, served: Served) -> None:
    biased = replace(greedy(), extras=Extras(logit_bias=((70, 100.0),)))
    assert set((await ask(engine, biased)).output.ids) == {70}
    if served.real and not served.url.startswith(VLLM):
        return  # SGLang without a GPU draws anew each time: docs/operate.md
    seeded = greedy(temperature=1.0, seed=7, max_new_tokens=12)
    assert (await ask(engine, seeded)).output.ids == (await ask(engine, seeded)).output.ids


async def test_refusals_are_input_errors_after_which_it_lives_on(engine: Engine) -> None:
    with pytest.raises(ContextFullError):
        await ask(engine, Prompt([1] * 9000, GREEDY))
    for prompt in (Prompt([], GREEDY), greedy(regex="(")):
        with pytest.raises(InputError, match=engine.url.replace("+", r"\+")):
            await ask(engine, prompt)
    with pytest.raises(InputError, match="v000009"):
        await ask(engine, greedy(), "v000009")
    assert len((await ask(engine, greedy())).output.ids) == 6


@pytest.mark.parametrize(("mode", "flush"), [("retract", True), ("in_place", False)])
async def test_an_answer_goes_on_with_new_weights_and_says_which_token_is_whose(
    engine: Engine, served: Served, mode: str, flush: bool
) -> None:
    async with aclosing(engine.stream(greedy(max_new_tokens=LONG))) as pieces:
        await anext(pieces)
        await engine.pause(mode)  # type: ignore[arg-type]
        await engine.load_folder(str(served.folders.other), 1, flush=flush)
        await engine.resume()
        paused = len((await anext(pieces)).ids)
        while len((await anext(pieces)).ids) < paused + 9:
            pass
        await engine.abort_all()
        last = [piece async for piece in pieces][-1]
    assert last.finish == "abort"
    (old, new) = last.versions
    assert (old.version, old.start, new.version, new.end) == (0, 0, 1, len(last.ids))
    assert 0 < old.end == new.start
    assert len(last.logprobs) == len(last.ids)


async def test_a_pause_holds_answers_and_what_comes_meanwhile(engine: Engine) -> None:
    whole = (await ask(engine, greedy(max_new_tokens=12))).output
    await engine.pause("in_place")
    waiting = asyncio.create_task(ask(engine, greedy(max_new_tokens=12)))
    done, _ = await asyncio.wait([waiting], timeout=0.5)
    assert not done
    await engine.info()
    await engine.resume()
    assert (await waiting).output.ids == whole.ids


async def test_a_pause_that_aborts_ends_answers_with_what_they_had(engine: Engine) -> None:
    running = asyncio.create_task(ask(engine, greedy(max_new_tokens=LONG)))
    async with aclosing(engine.stream(greedy(max_new_tokens=LONG))) as pieces:
        await anext(pieces)
        await engine.pause("abort")
        last = [piece async for piece in pieces][-1]
    await engine.resume()
    for output in ((await running).output, last.output()):
        assert output.finish == "abort"
        assert len(output.ids) == len(output.logprobs) < LONG


async def test_weights_change_answers_and_come_back_exactly(engine: Engine, served: Served) -> None:
    prompt = Prompt([1, *(40 + n % 60 for n in range(300))], GREEDY)
    first, again = [await ask(engine, prompt) for _ in range(2)]
    assert again.cached_tokens > 0
    await load(engine, served.folders.other, 1)
    assert await engine.info() == EngineInfo(1, str(served.folders.other))
    second = await ask(engine, prompt)
    assert second.cached_tokens == 0, "computed by other weights"
    assert second.output.logprobs != pytest.approx(first.output.logprobs, abs=1e-2)
    await load(engine, served.folders.start, 2)
    third = (await ask(engine, prompt)).output
    assert third.ids == first.output.ids
    assert third.logprobs == pytest.approx(first.output.logprobs, abs=2e-3)


async def test_every_tensor_of_a_folder_is_loaded(
    engine: Engine, served: Served, tmp_path: Path
) -> None:
    def move(tensors: dict[str, Tensor]) -> None:
        for tensor in tensors.values():
            noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(3))
            tensor.mul_((1 + noise / 20).to(tensor.dtype))

    moved = edit_weights(served.folders.start, tmp_path / "moved", move)
    await load(engine, moved, 1)
    found, _ = await engine.prompt_logprobs([*PROMPT, 90, 91], "")
    expected = plain_logprobs(plain_model(moved), PROMPT[:1], [*PROMPT[1:], 90, 91])
    assert found == pytest.approx(expected, abs=1e-3)


async def test_a_folder_that_is_not_there_is_refused_and_others_load_after_it(
    engine: Engine, served: Served, tmp_path: Path
) -> None:
    before = (await ask(engine, greedy())).output
    folders = [served.folders.missing]
    if not served.real or served.url.startswith(VLLM):  # SGLang dies of this one
        folders.append(truncated(served.folders.start, tmp_path / "truncated"))
    for folder in folders:
        await engine.pause("retract")
        with pytest.raises(WeightsError, match=str(folder)):
            await engine.load_folder(str(folder), 9, flush=True)
        assert (await engine.info()).version <= 0
        await engine.load_folder(str(served.folders.start), 0, flush=True)
        await engine.resume()
        assert (await ask(engine, greedy())).output.ids == before.ids


async def test_it_says_what_it_can_show(engine: Engine, served: Served) -> None:
    assert await engine.dtype() == "float32"
    rows = await engine.rows("model.norm.weight", 4)
    vllm = served.url.startswith(VLLM)
    assert (rows is None) == vllm
    if vllm:
        with pytest.raises(PolicyError, match="reads folders"):
            await engine.receivers()
    else:
        assert await engine.receivers() == 1


async def test_memory_that_was_released_holds_what_is_loaded_after_it_is_back(
    engine: Engine, served: Served
) -> None:
    if served.real and not served.url.startswith(VLLM):  # started without a memory saver
        with pytest.raises(PolicyError, match="--enable-memory-saver"):
            await engine.release_memory()
        return
    before = (await ask(engine, greedy())).output
    await engine.pause("abort")
    await engine.release_memory()
    await engine.resume_memory()
    await load(engine, served.folders.start, 0)
    assert (await ask(engine, greedy())).output.ids == before.ids


async def test_adapters_come_and_go_while_answers_are_written(
    engine: Engine, served: Served, tmp_path: Path
) -> None:
    if served.real and not served.url.startswith(VLLM):
        pytest.skip("the real SGLang of this suite is started without --enable-lora")
    plain = (await ask(engine, greedy())).output
    one, two = (build_adapter(tmp_path / n, served.folders.start, seed=s) for n, s in (("a", 1), ("b", 2)))  # fmt: skip
    async with aclosing(engine.stream(greedy(max_new_tokens=LONG))) as pieces:
        await anext(pieces)
        await engine.load_adapter("v000001", str(one))
        await engine.load_adapter("v000002", str(two))
        assert await engine.adapters() == {"v000001": str(one), "v000002": str(two)}
        first, second = [
            (await ask(engine, greedy(), name)).output for name in ("v000001", "v000002")
        ]
        assert len({plain.logprobs, first.logprobs, second.logprobs}) == 3
        assert first.versions == (VersionSpan(version=0, start=0, end=6),)
        await engine.load_adapter("v000002", str(one))  # another one of that name
        assert (await ask(engine, greedy(), "v000002")).output.ids == first.ids
        scores, _ = await engine.prompt_logprobs([*PROMPT, *first.ids], "v000001")
        assert scores[len(PROMPT) - 1 :] == pytest.approx(first.logprobs, abs=2e-3)
        for name in ("v000001", "v000002"):
            await engine.unload_adapter(name)
        assert (await anext(pieces)).finish is None
    with pytest.raises(InputError, match="v000001"):
        await ask(engine, greedy(), "v000001")
    with pytest.raises(WeightsError, match="v000003"):
        await engine.load_adapter("v000003", str(served.folders.missing))
    assert (await ask(engine, greedy())).output.ids == plain.ids
