"""An engine on another device than the CPU, as far as that is possible without a GPU: every tensor of a pass on its device, half precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from services.local_engine.kv_cache import StepBatch
from services.local_engine.lora import Adapter, tokens_of_adapters
from services.local_engine.model import load_model, place, stage_tensors, stage_weights
from services.local_engine.request import SamplingParams
from services.local_engine.sampler import sample, shifted
from services.local_engine.scheduler import Limits, Scheduler
from tests.unit.local_engine.models import VOCAB, build_folder, new_sequence
from triforge.errors import ConfigError

META = torch.device("meta")  # its kernels refuse tensors of the CPU, as those of a GPU do


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_folder(tmp_path_factory.mktemp("device") / "a")


@pytest.mark.parametrize("own_llama", [True, False])
def test_a_pass_asks_for_nothing_that_lies_on_another_device(folder: Path, own_llama: bool) -> None:
    model: Any
    if own_llama:
        model, config = load_model(folder, device=META, dtype=torch.bfloat16)
    else:  # whose check of the cache compares numbers, of which there are none
        made, config = load_model(folder, own_llama=False)
        with META:
            model = type(made)(config, dtype=torch.bfloat16)
    staged = stage_weights(folder, model, config)
    assert {(t.device, t.dtype) for t in staged.values()} == {(META, torch.bfloat16)}
    model.apply(staged)
    some = stage_tensors({"model.norm.weight": torch.ones(32)}, model, "here")
    assert {(t.device, t.dtype) for t in some.values()} == {(META, torch.bfloat16)}
    cache = model.new_cache()
    cache.reserve(6, 100, [])
    prefill = cache.prefill_batch(1, [[3, 4, 5], [6], []], [0, 2, 1], [[2], [0], []])
    now, bases = torch.tensor([7, 8]), torch.tensor([0, cache.capacity])
    decode = cache.decode_batch(now, torch.tensor([3, 4]), bases, 5)
    for batch, rows in ((prefill, 2), (decode, 2)):
        if own_llama:
            batch.adapted = adapted(model, batch)
        logits = model.forward(batch, cache)
        assert (logits.device, tuple(logits.shape)) == (META, (rows, VOCAB))


def adapted(model: Any, batch: StepBatch) -> list[tuple[Adapter, torch.Tensor]]:
    narrow = torch.empty(2, 32, device=META, dtype=torch.bfloat16)
    name = "model.layers.0.self_attn.o_proj.weight"
    adapter = Adapter(Path(), {name: (narrow, narrow.t())})
    return tokens_of_adapters([adapter], [len(batch.ids)], model.device)


def test_sampling_leaves_logits_where_they_are() -> None:
    asked: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.7, "top_p": 0.9, "top_k": 5},
        {"logit_bias": {"4": 1.5}, "presence_penalty": 0.5},
    ]
    params = [SamplingParams(**one) for one in asked]
    logits = torch.empty(3, VOCAB, device=META)
    moved = shifted(logits, params, [[1], [2], [3, 3]])
    with Seen() as seen:
        found = sample(moved, params, [1, 2, 3], [0, 0, 0], [(1, torch.zeros(VOCAB).bool())])
    assert {t.device for t in (found.ids, found.logprobs, found.full)} == {META}
    # Parallel hardware adds up with other roundings: see `rising`.
    assert "aten::cummax" in seen.names


class Seen(TorchDispatchMode):
    """Names of the operations that ran."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.names.add(func._schema.name)
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("own_llama", [True, False])
def test_half_precision_serves_what_float32_does(folder: Path, own_llama: bool) -> None:
    outputs, scores = [], []
    for dtype in (torch.float32, torch.bfloat16):
        model, _ = load_model(folder, own_llama=own_llama, dtype=dtype)
        scheduler = Scheduler(model, Limits(), "0")
        ids = list(range(3, 40))
        seq = new_sequence(ids, 1, max_new_tokens=1, temperature=0.0, ignore_eos=True)
        scheduler.submit([seq])
        while not scheduler.idle:
            scheduler.step()
        assert scheduler.cache.data.dtype == dtype
        outputs.append(seq.output)
        scores.append(seq.logprobs)
    assert outputs[0] == outputs[1]
    assert scores[0] == pytest.approx(scores[1], abs=0.15)
    assert scores[0] != scores[1]


def test_a_device_that_is_not_there_is_refused_with_what_there_is() -> None:
    with pytest.raises(
        ConfigError, match=r"given 'xpu:7', expected auto, cpu, or a GPU that torch"
    ):
        place("xpu:7", "auto")
    assert place("cpu", "auto") == (torch.device("cpu"), torch.float32)
    assert place("cpu", "bfloat16")[1] == torch.bfloat16
