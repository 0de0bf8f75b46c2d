"""A forward pass that is halted between two layers is repeated later, as if it had never begun."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from services.local_engine.detokenize import TextCodec
from services.local_engine.engine import Engine
from services.local_engine.kv_cache import SlotCache
from services.local_engine.model import load_model, stage_weights
from services.local_engine.scheduler import Limits, Scheduler
from services.local_engine.sequence import Sequence
from tests.unit.local_engine.models import (
    build_folder,
    new_scheduler,
    new_sequence,
    plain_logprobs,
    plain_model,
    random_prompts,
    run_all,
)

LAYERS = 6
HELD = 2  # the layer at which a gate holds a pass
# Passes of `requests`: the two short prompts, the long prompt, then steps of three rows.
SHORT, LONG, STEP = 0, 1, 4
OUTPUT = 9
SAMPLING = (
    {"temperature": 0.0},
    {"temperature": 1.0, "top_p": 0.95},
    {"temperature": 0.8, "top_k": 40},
)


class Gate:
    """Counts the layers of every pass, by their cells; at layer `HELD` of pass `held` it waits, or calls `then`."""

    def __init__(self, held: int) -> None:
        self.held = held
        self.then: Callable[[], object] = self.wait
        self.passes: list[int] = []
        self.reached, self.free = threading.Event(), threading.Event()

    def layer(self, index: int) -> None:
        if index == 0:
            self.passes.append(0)
        self.passes[-1] += 1
        if (len(self.passes) - 1, index) == (self.held, HELD):
            self.then()

    def wait(self) -> None:
        self.reached.set()
        assert self.free.wait(60)


class GatedCells:
    """Stands for `SlotCache.flat`, which a forward pass asks for each layer once."""

    def __init__(self, cells: list[torch.Tensor], gate: Gate) -> None:
        self._cells, self._gate = cells, gate

    def __getitem__(self, index: int) -> torch.Tensor:
        self._gate.layer(index)
        return self._cells[index]

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self._cells)


class GatedModel:
    def __init__(self, model: Any, gate: Gate) -> None:
        self.model, self.gate = model, gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def new_cache(self) -> SlotCache:
        cache: Any = self.model.new_cache()
        cache.reserve(8, 256, [])  # no request of these tests needs more
        cache.flat = GatedCells(cache.flat, self.gate)
        return cache  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_folder(tmp_path_factory.mktemp("deep") / "a", num_hidden_layers=LAYERS)


@pytest.fixture(scope="module")
def other_deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_folder(tmp_path_factory.mktemp("deep") / "b", num_hidden_layers=LAYERS, seed=1)


def requests() -> list[Sequence]:
    """Two short prompts and a long one, greedy and seeded."""
    heads = random_prompts(2, seed=3, longest=12)
    prompts = [*heads, *random_prompts(1, seed=4, shared=140)]
    return [
        new_sequence(ids, seed, max_new_tokens=OUTPUT, ignore_eos=True, **sampling)
        for seed, (ids, sampling) in enumerate(zip(prompts, SAMPLING, strict=True))
    ]


def outputs(sequences: list[Sequence]) -> list[list[int]]:
    return [seq.output for seq in sequences]


@functools.cache
def expected(folder: Path, *, own_llama: bool = True) -> list[list[int]]:
    return outputs(run_all(new_scheduler(folder, own_llama=own_llama), requests()))


class Held:
    """A running engine whose pass is held, the requests in it, and the task that waits for their answers."""

    def __init__(self, engine: Engine, gate: Gate) -> None:
        self.engine, self.gate = engine, gate
        self.sequences = requests()
        self.answers = asyncio.create_task(engine.generate(self.sequences))

    async def meet(self, command: Awaitable[Any]) -> Any:
        """Ask for something while the pass is held, then let the pass go on; returns the answer."""
        asked = asyncio.ensure_future(command)
        await asyncio.sleep(0)  # runs it up to its first wait: it has been posted
        self.gate.free.set()
        return await asked

    @property
    def lengths(self) -> list[int]:
        return [len(seq.output) for seq in self.sequences]


@asynccontextmanager
async def held_at(folder: Path, held: int, *, own_llama: bool = True) -> AsyncIterator[Held]:
    model, config = load_model(folder, own_llama=own_llama)
    gate = Gate(held)
    gated: Any = GatedModel(model, gate)
    engine = Engine(gated, config, TextCodec(folder), folder, version="0", seed=0)
    engine.start()
    try:
        async with asyncio.timeout(60):  # lost requests fail the test and do not hang it
            made = Held(engine, gate)
            assert await asyncio.to_thread(gate.reached.wait, 30)
            yield made
            await made.answers
    finally:
        gate.free.set()
        engine.stop()


@pytest.mark.parametrize("own_llama", [True, False])
@pytest.mark.parametrize("held", [SHORT, LONG, STEP])
@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_a_pause_does_not_wait_for_the_last_layer_and_changes_no_answer(
    deep: Path, mode: str, held: int, own_llama: bool
) -> None:
    async with held_at(deep, held, own_llama=own_llama) as met:
        before = met.lengths
        await met.meet(met.engine.pause(mode))
        assert met.gate.passes == [LAYERS] * held + [HELD + 1]
        assert met.lengths == before
        await met.engine.resume()
        await met.answers
        assert outputs(met.sequences) == expected(deep, own_llama=own_llama)
        assert [len(seq.logprobs) for seq in met.sequences] == [OUTPUT] * 3
        assert [seq.spans for seq in met.sequences] == [[("0", 0)]] * 3


@pytest.mark.parametrize("held", [SHORT, LONG, STEP])
@pytest.mark.parametrize("command", ["pause", "abort"])
async def test_ending_everything_does_not_wait_and_answers_with_whole_tokens(
    deep: Path, command: str, held: int
) -> None:
    async with held_at(deep, held) as met:
        before, whole = met.lengths, expected(deep)
        asked = met.engine.pause("abort") if command == "pause" else met.engine.abort(None)
        await met.meet(asked)
        await met.answers
        assert met.gate.passes == [LAYERS] * held + [HELD + 1]
        assert met.lengths == before
        assert outputs(met.sequences) == [w[:n] for w, n in zip(whole, before, strict=True)]
        assert {(seq.finish or {}).get("type") for seq in met.sequences} == {"abort"}
        await met.engine.resume()
        again = requests()
        await met.engine.generate(again)
        assert outputs(again) == whole


@pytest.mark.parametrize("held", [LONG, STEP])
@pytest.mark.parametrize("mode", ["none", "retract", "in_place"])
async def test_the_step_that_an_update_stopped_is_repeated_with_the_new_weights(
    deep: Path, other_deep: Path, mode: str, held: int
) -> None:
    async with held_at(deep, held) as met:
        before, engine = met.lengths, met.engine
        tensors = stage_weights(other_deep, engine.model, engine.config)
        if mode != "none":
            await met.meet(engine.pause(mode))
        await met.meet(engine.swap(tensors, "1", folder=other_deep))
        assert met.gate.passes[held] == HELD + 1
        if mode != "none":
            assert met.lengths == before
            await engine.resume()
        await met.answers
        old = [out[:n] for out, n in zip(expected(deep), before, strict=True)]
        assert [out[:n] for out, n in zip(outputs(met.sequences), before, strict=True)] == old
        for seq, n in zip(met.sequences, before, strict=True):
            spans = [("0", 0, n), ("1", n, OUTPUT)] if n else [("1", 0, OUTPUT)]
            found = seq.weight_spans(OUTPUT, "1")
            assert [(s["version"], s["start"], s["end"]) for s in found] == spans
        if held == LONG:  # no key of the old weights is left in it
            assert met.sequences[2].output == expected(other_deep)[2]
            scores = plain_logprobs(
                plain_model(other_deep), met.sequences[2].ids, met.sequences[2].output, 0.8
            )
            assert met.sequences[2].logprobs == pytest.approx(scores, abs=1e-4)


def test_a_prompt_that_was_stopped_leaves_nothing_in_the_scheduler(deep: Path) -> None:
    model, _ = load_model(deep)
    gate = Gate(LONG)
    gated: Any = GatedModel(model, gate)
    scheduler = Scheduler(gated, Limits(), "0")
    gate.then = scheduler.halt.set
    sequences = requests()
    scheduler.submit(sequences)
    scheduler.step()
    assert gate.passes == [LAYERS, HELD + 1]
    short = sequences[:2]
    assert sorted(seq.rid for seq in scheduler.running) == [seq.rid for seq in short]
    assert list(scheduler.waiting) == sequences[2:]
    assert scheduler.reserved == sum(len(seq.ids) + OUTPUT for seq in short)
    assert scheduler.prefixes.tokens == sum(len(seq.ids) for seq in short)
    assert (sequences[2].spans, sequences[2].cached, sequences[2].output) == ([], 0, [])
    for _ in range(3):  # each step is stopped before its first layer
        scheduler.step()
    assert gate.passes == [LAYERS, HELD + 1]
    scheduler.halt.clear()
    run_all(scheduler, [])
    assert outputs(sequences) == expected(deep)
