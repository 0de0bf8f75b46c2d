"""A local engine that gives its memory back: nothing is left, nothing can be asked of it, and it serves on as before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from services.local_engine.kv_cache import SlotCache
from services.local_engine.scheduler import Scheduler
from tests.unit.local_engine.models import (
    build_folder,
    new_engine,
    new_scheduler,
    new_sequence,
    run_all,
)
from triforge.errors import UnavailableError

PROMPT = list(range(3, 60))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_folder(tmp_path_factory.mktemp("memory") / "a")


def sampled(scheduler: Scheduler) -> tuple[list[int], list[float]]:
    (found,) = run_all(scheduler, [new_sequence(PROMPT, 1, max_new_tokens=8, ignore_eos=True)])
    return found.output, found.logprobs


@pytest.mark.parametrize("own_llama", [True, False])
def test_what_is_released_is_gone_and_comes_back_as_it_was(folder: Path, own_llama: bool) -> None:
    scheduler = new_scheduler(folder, own_llama=own_llama)
    before, cells = sampled(scheduler), scheduler.cache.data.nbytes
    weights = [scheduler.model.tensor(name) for name in scheduler.model.shapes()]
    for _ in range(2):
        scheduler.release()
        scheduler.release()  # asked again by a caller that did not hear the answer
        assert {t.untyped_storage().nbytes() for t in weights} == {0}
        assert scheduler.cache.data.nbytes < cells
        assert scheduler.prefixes.tokens == 0
        scheduler.resume()
        assert sampled(scheduler) == before


async def test_a_released_engine_is_not_ready_and_reads_no_freed_memory(folder: Path) -> None:
    engine = new_engine(folder)
    engine.start()
    rows = engine.scheduler.rows
    try:
        row = await engine.call(rows, "model.norm.weight", 1)
        await engine.call(engine.scheduler.release)
        assert not engine.ready
        with pytest.raises(UnavailableError, match="resume it first"):
            await engine.call(rows, "model.norm.weight", 1)
        with pytest.raises(UnavailableError, match="resume it first"):
            await engine.swap({"model.norm.weight": torch.ones(32)}, "7")
        await engine.resume()  # of a policy service that does not know who released it
        assert engine.ready
        assert await engine.call(rows, "model.norm.weight", 1) == row
    finally:
        engine.stop()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cache_that_found_no_memory_to_grow_is_as_it_was(dtype: torch.dtype) -> None:
    """Else it would be written behind its end, which on a GPU is the end of the process."""
    cache = SlotCache(2, 2, 8, torch.device("cpu"), dtype)
    held = cache.rows, cache.capacity
    with pytest.raises((MemoryError, RuntimeError)):
        cache.reserve(4, 1 << 44, [])
    assert (cache.rows, cache.capacity) == held == tuple(cache.data.shape[1:3])
