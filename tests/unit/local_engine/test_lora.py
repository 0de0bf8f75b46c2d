"""Low-rank adapters that are added to single requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from services.local_engine.model import load_model
from tests.unit.local_engine.adapters import build_adapter, merge
from tests.unit.local_engine.models import (
    new_scheduler,
    new_sequence,
    plain_logprobs,
    plain_model,
    random_prompts,
    run_all,
)
from triforge.errors import WeightsError


def test_requests_with_different_adapters_are_what_merged_models_would_say(
    folder: Path, tmp_path: Path
) -> None:
    scheduler = new_scheduler(folder)
    models: list[Any] = [plain_model(folder)]
    adapters: list[Any] = [None]
    for seed, modules in enumerate((("self_attn.q_proj", "self_attn.v_proj"), None)):
        chosen = {} if modules is None else {"modules": modules}
        made = build_adapter(tmp_path / f"a{seed}", folder, seed=seed, **chosen)
        adapters.append(scheduler.model.read_adapter(made))
        models.append(plain_model(merge(folder, made, tmp_path / f"m{seed}")))
    sequences = []
    for i, prompt in enumerate(random_prompts(9, shared=20)):  # shared by requests of all adapters
        seq = new_sequence(prompt, i, max_new_tokens=12 + i, ignore_eos=True)
        seq.adapter = adapters[i % 3]
        sequences.append(seq)
    scheduler.submit(sequences)
    for _ in range(4):
        scheduler.step()
    scheduler.pause("retract")
    scheduler.resume()
    run_all(scheduler, [])
    for i, seq in enumerate(sequences):
        expected = plain_logprobs(models[i % 3], seq.ids, seq.output)
        assert seq.logprobs == pytest.approx(expected, abs=2e-4), i
    assert any(seq.cached for seq in sequences)
    assert scheduler.flush()


def test_prefixes_are_shared_by_requests_of_one_adapter_only(folder: Path, tmp_path: Path) -> None:
    scheduler = new_scheduler(folder)
    made = [build_adapter(tmp_path / f"a{seed}", folder, seed=seed) for seed in range(2)]
    first, second = (scheduler.model.read_adapter(path) for path in made)
    cached = []
    for number, adapter in enumerate((None, first, second, first, None)):
        seq = new_sequence(list(range(5, 15)), number, max_new_tokens=1)
        seq.adapter = adapter
        cached.append(run_all(scheduler, [seq])[0].cached)
    assert cached == [0, 0, 0, 9, 9]


def test_rank_stabilised_adapters_are_scaled_by_the_root_of_the_rank(
    folder: Path, tmp_path: Path
) -> None:
    scheduler = new_scheduler(folder)
    made = build_adapter(tmp_path / "a", folder, use_rslora=True)
    seq = new_sequence([5, 6, 7], 0, max_new_tokens=8, ignore_eos=True)
    seq.adapter = scheduler.model.read_adapter(made)
    run_all(scheduler, [seq])
    merged = plain_model(merge(folder, made, tmp_path / "m", scale=6 / 3**0.5))
    assert seq.logprobs == pytest.approx(plain_logprobs(merged, seq.ids, seq.output), abs=2e-4)


A = "base_model.model.model.layers.1.mlp.up_proj.lora_A.weight"


@pytest.mark.parametrize(
    ("settings", "change", "says"),
    [
        ({"use_dora": True}, None, "use_dora is True, which is not supported"),
        ({"r": 0}, None, "r is 0 and lora_alpha 6"),
        ({}, lambda t: t.update({A: torch.zeros(2, 32)}), r"up_proj.lora_A.weight has shape \[2, 32\], expected \[3, 32\]"),
        ({}, lambda t: t.update({A: torch.full((3, 32), float("nan"))}), "holds values that are not finite"),
        ({}, lambda t: t.update({"base_model.model.lm_head.lora_A.weight": torch.zeros(3, 32)}), "adapts no layer"),
    ],
)  # fmt: skip
def test_an_adapter_that_does_not_fit_is_refused_by_name(
    folder: Path, tmp_path: Path, settings: dict[str, Any], change: Any, says: str
) -> None:
    model, _ = load_model(folder)
    made = build_adapter(tmp_path / "a", folder, **settings)
    if change is not None:
        file = made / "adapter_model.safetensors"
        tensors = load_file(file)
        change(tensors)
        save_file(tensors, file)
    with pytest.raises(WeightsError, match=says):
        model.read_adapter(made)


def test_a_module_of_transformers_takes_no_adapters(folder: Path, tmp_path: Path) -> None:
    model, _ = load_model(folder, own_llama=False)
    with pytest.raises(WeightsError, match="models of the Llama family only"):
        model.read_adapter(build_adapter(tmp_path / "a", folder))
