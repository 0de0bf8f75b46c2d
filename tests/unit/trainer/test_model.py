import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from services.trainer.learner.model.causal_lm import ScoringModel
from services.trainer.learner.model.token_batches import Sequences
from services.trainer.learner.weights.tensors import copy_companions
from triforge.errors import WeightsError

CPU = torch.device("cpu")
IDS = [np.array([4, 13, 11, 5, 6, 9, 2]), np.array([4, 14, 5, 7, 10, 2])]
SCORED = [np.array([4, 5, 6]), np.array([3, 5])]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_are_those_of_a_plain_forward_pass_of_each_row(
    model_folder: Path, temperature: float
):
    batch = Sequences(IDS, SCORED).batch([0, 1], CPU)
    with torch.no_grad():
        found, entropy = ScoringModel.load(model_folder).score(batch, temperature)
    plain = AutoModelForCausalLM.from_pretrained(model_folder)
    wanted, spread = [], []
    for ids, places in zip(IDS, SCORED, strict=True):
        with torch.no_grad():
            logits = plain(torch.from_numpy(ids)[None]).logits[0]
        logprobs = (logits.double() / temperature).log_softmax(-1)
        for place in places:
            wanted.append(float(logprobs[place - 1, ids[place]]))
            spread.append(float(-(logprobs[place - 1].exp() * logprobs[place - 1]).sum()))
    assert found.tolist() == pytest.approx(wanted, abs=1e-5)
    assert entropy.tolist() == pytest.approx(spread, abs=1e-5)


def damaged(model_folder: Path, target: Path, **changes: torch.Tensor | None) -> Path:
    """A copy of the folder with some tensors replaced (or dropped, with None)."""
    target.mkdir()
    copy_companions(model_folder, target)
    tensors = load_file(model_folder / "model.safetensors")
    for name, tensor in changes.items():
        if tensor is None:
            del tensors[name]
        else:
            tensors[name] = tensor
    save_file(tensors, target / "model.safetensors")
    return target


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model.norm.weight": None}, "tensors missing: model.norm.weight"),
        ({"stranger": torch.zeros(1)}, "tensors unknown: stranger"),
        (
            {"lm_head.weight": torch.zeros(2, 2)},
            r"lm_head.weight has shape \(2, 2\), expected \(15, 16\)",
        ),
        ({"lm_head.weight": torch.full((15, 16), torch.nan)}, "tensors not finite: lm_head.weight"),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    model_folder: Path, tmp_path: Path, changes: dict[str, torch.Tensor | None], sentence: str
):
    with pytest.raises(WeightsError, match=sentence):
        ScoringModel.load(damaged(model_folder, tmp_path / "m", **changes))


def test_folders_that_are_no_models_are_refused(model_folder: Path, tmp_path: Path):
    with pytest.raises(WeightsError, match=r"no config.json"):
        ScoringModel.load(tmp_path)
    copy_companions(model_folder, tmp_path)
    with pytest.raises(WeightsError, match=r"no \*\.safetensors"):
        ScoringModel.load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(
        (model_folder / "model.safetensors").read_bytes()[:500]
    )
    with pytest.raises(WeightsError, match="cannot be read as safetensors"):
        ScoringModel.load(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "nosuch"}')
    with pytest.raises(WeightsError, match=r"config.json"):
        ScoringModel.load(tmp_path)


HARMFUL: dict[str, tuple[dict[str, Any], str]] = {
    "code": (
        {"model_type": "mine", "auto_map": {"AutoConfig": "mine.C", "AutoModelForCausalLM": "mine.M"}},
        "'mine', which the installed transformers does not know as a causal language model, and code of the folder .* is never run",
    ),
    "layers": ({"num_hidden_layers": 10**6}, "num_hidden_layers is 1000000, but the folder holds"),
    "widths": ({"intermediate_size": 10**12}, r"describes \d{14,} weights, but the folder holds"),
    "words": ({"hidden_size": "many"}, "config.json"),
}  # fmt: skip


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", HARMFUL)
def test_a_config_that_is_meant_to_do_harm_is_refused(
    model_folder: Path, tmp_path: Path, name: str
) -> None:
    folder = shutil.copytree(model_folder, tmp_path / "model")
    changes, sentence = HARMFUL[name]
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    (folder / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(WeightsError, match=sentence):
        ScoringModel.load(folder)
    assert not (tmp_path / "ran").exists()


def test_code_in_the_folder_of_a_known_model_is_not_run(model_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(model_folder, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "mine.C", "AutoModelForCausalLM": "mine.M"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    assert ScoringModel.load(folder).vocabulary == 15
    assert not (tmp_path / "ran").exists()


@pytest.mark.timeout(60)
def test_a_config_that_is_nested_and_a_pipe_for_weights_are_refused(
    model_folder: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(model_folder, tmp_path / "model")
    (folder / "config.json").write_text('{"a":' + "[" * 100_000)
    with pytest.raises(WeightsError, match=r"config.json: cannot be read: recursion limit"):
        ScoringModel.load(folder)
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    with pytest.raises(WeightsError, match=r"model.safetensors: cannot be read: .*regular file"):
        ScoringModel.load(folder)


def test_what_is_shared_out_afterwards_stays_in_the_pages_of_its_files(
    model_folder: Path,
) -> None:
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    before = {line[0] for line in maps}
    whole, mapped = ScoringModel.load(model_folder), ScoringModel.load(model_folder, None)
    regions = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, *_, path = line.split()
        if place not in before and path.endswith(".safetensors"):
            regions.append([int(edge, 16) for edge in place.split("-")])

    def shared(model: ScoringModel) -> set[bool]:
        found = [p.data_ptr() for p in model.parameters().values()]
        return {any(low <= at < high for low, high in regions) for at in found}

    assert (shared(whole), shared(mapped)) == ({False}, {True})
    ids = [0, 1, 2, 3]
    assert mapped.logprobs(ids) == whole.logprobs(ids)
