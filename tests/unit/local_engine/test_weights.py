from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from services.local_engine.model import load_model, stage_tensors, stage_weights
from tests.unit.local_engine.models import edit_weights
from triforge.errors import WeightsError

Q = "model.layers.1.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.pop(Q), f"{Q} is missing"),
        (lambda t: t[Q].fill_(float("nan")), f"{Q} holds values that are not finite"),
    ],
)
def test_wrong_tensor_is_named(folder: Path, tmp_path: Path, change: Any, says: str) -> None:
    model, config = load_model(folder)
    with pytest.raises(WeightsError, match=says):
        stage_weights(edit_weights(folder, tmp_path / "bad", change), model, config)


def test_shards_are_read_together(folder: Path, tmp_path: Path) -> None:
    model, config = load_model(folder)
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    shards = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    for file, part in shards.items():
        save_file({n: tensors[n] for n in part}, tmp_path / file)
    index = {"weight_map": {n: file for file, part in shards.items() for n in part}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    staged = stage_weights(tmp_path, model, config)
    assert all(torch.equal(staged[n], tensors[n]) for n in names)
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"b\.safetensors"):
        stage_weights(tmp_path, model, config)


def test_another_forward_pass_with_the_same_shapes_is_refused(folder: Path, tmp_path: Path) -> None:
    model, config = load_model(folder)
    bad = edit_weights(folder, tmp_path / "bad", lambda tensors: None)
    changed = json.loads((bad / "config.json").read_text()) | {"rms_norm_eps": 0.5}
    (bad / "config.json").write_text(json.dumps(changed))
    with pytest.raises(WeightsError, match=r"rms_norm_eps is 0\.5"):
        stage_weights(bad, model, config)


@pytest.mark.parametrize("own_llama", [True, False])
def test_weights_equal_the_folder(folder: Path, byte_folder: Path, own_llama: bool) -> None:
    for source in (folder, byte_folder):
        model, _ = load_model(source, own_llama=own_llama)
        found = {name: model.tensor(name).clone() for name in model.shapes()}
        expected = load_file(source / "model.safetensors")
        assert all(torch.equal(expected[name], tensor) for name, tensor in found.items())
        assert set(expected) - set(found) <= {"lm_head.weight"}
    tied = model.tensor("lm_head.weight")
    assert torch.equal(tied, model.tensor("model.embed_tokens.weight"))


@pytest.mark.parametrize("own_llama", [True, False])
def test_replace_some_tensors(folder: Path, other_folder: Path, own_llama: bool) -> None:
    model, _ = load_model(folder, own_llama=own_llama)
    before = {name: model.tensor(name).clone() for name in model.shapes()}
    new = load_file(other_folder / "model.safetensors")[Q]
    model.apply(stage_tensors({Q: new.to(torch.bfloat16)}, model, "a test"))
    after = {name: model.tensor(name).clone() for name in model.shapes()}
    assert {name for name in after if not torch.equal(after[name], before[name])} == {Q}
    assert torch.equal(model.tensor(Q), new.to(torch.bfloat16).to(torch.float32))
    with pytest.raises(WeightsError, match=r"a test: tensor nonsense is unknown"):
        stage_tensors({"nonsense": new}, model, "a test")
    with pytest.raises(WeightsError, match=rf"{Q} is of type torch.int64, expected floating"):
        stage_tensors({Q: torch.zeros(32, 32, dtype=torch.int64)}, model, "a test")


HARMFUL: dict[str, tuple[dict[str, Any], str]] = {
    "code": (
        {"model_type": "mine", "auto_map": {"AutoConfig": "mine.C", "AutoModelForCausalLM": "mine.M"}},
        "'mine', which the installed transformers does not know as a causal language model, and code of the folder .* is never run",
    ),
    "layers": ({"num_hidden_layers": 10**6}, "num_hidden_layers is 1000000, but the folder holds"),
    "widths": ({"intermediate_size": 10**12}, r"describes \d{14,} weights, but the folder holds"),
    "places": ({"max_position_embeddings": 10**12}, "max_position_embeddings is 1000000000000"),
    "heads": ({"num_attention_heads": 0}, "config.json"),
    "words": ({"hidden_size": "many"}, "config.json"),
    "less than nothing": ({"hidden_size": -1}, "config.json"),
}  # fmt: skip


@pytest.mark.timeout(60)
@pytest.mark.parametrize("own_llama", [True, False], ids=["own", "transformers"])
@pytest.mark.parametrize("name", HARMFUL)
def test_hostile_config(folder: Path, tmp_path: Path, name: str, own_llama: bool) -> None:
    changes, sentence = HARMFUL[name]
    bad = shutil.copytree(folder, tmp_path / "bad")
    config = json.loads((bad / "config.json").read_text())
    config.pop("head_dim", None)
    (bad / "config.json").write_text(json.dumps(config | changes))
    (bad / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    if name == "places" and not own_llama:  # its positions are computed as they come
        assert load_model(bad, own_llama=False)[0].context_length == 10**12
        return
    with pytest.raises(WeightsError, match=sentence):
        load_model(bad, own_llama=own_llama)
    assert not (tmp_path / "ran").exists()


@pytest.mark.timeout(60)
def test_a_pipe_in_the_place_of_weights_is_not_opened(folder: Path, tmp_path: Path) -> None:
    model, config = load_model(folder)
    bad = shutil.copytree(folder, tmp_path / "bad")
    (bad / "model.safetensors").unlink()
    os.mkfifo(bad / "model.safetensors")
    with pytest.raises(WeightsError, match=r"model.safetensors: .*no regular file"):
        load_model(bad)
    with pytest.raises(WeightsError, match=r"model.safetensors: .*no regular file"):
        stage_weights(bad, model, config)
