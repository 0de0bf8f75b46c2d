"""Folders with an output matrix of their own next to an embedding: one model everywhere, the one of transformers, or none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from services.local_engine.model import load_model, stage_tensors, stage_weights
from services.policy.weights.folder import check_folder, read_weights
from services.trainer.learner.model.causal_lm import ScoringModel
from services.trainer.learner.model.lora import AdaptedModel, LoraShape
from tests.unit.local_engine.models import build_folder
from triforge.doctor.local import demand_model
from triforge.errors import WeightsError
from triforge.store.model_config import demand_head
from triforge.store.tensor_files import read_folder

HEAD, EMBEDDING, FILE = "lm_head.weight", "model.embed_tokens.weight", "model.safetensors"
IDS = [1, 7, 9, 30, 4, 12, 55]
READERS: dict[str, Callable[[Path], object]] = {
    "first check": demand_model,
    "engine": load_model,
    "engine, other families": lambda folder: load_model(folder, own_llama=False),
    "update": lambda folder: check_folder(folder, digest="", depth="sizes"),
    "learner": ScoringModel.load,
    "learner of an adapter": lambda folder: AdaptedModel.over(folder, LoraShape(2, 4)),
}


def change(folder: Path, head: Callable[[Tensor], Tensor] | None, **config: object) -> None:
    """Give a tied folder a head that is made of the embedding, and other fields of its config."""
    tensors = load_file(folder / FILE)
    if head is not None:
        tensors[HEAD] = head(tensors[EMBEDDING])
    save_file(tensors, folder / FILE, metadata={"format": "pt"})
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))


@pytest.fixture
def tied(tmp_path: Path) -> Path:
    return build_folder(tmp_path / "tied", tie_word_embeddings=True)


def other(embedding: Tensor) -> Tensor:
    """Return a head as a merged adapter leaves it: that of the embedding and something more."""
    return embedding + 0.5 * embedding.flip(0)


def longer(embedding: Tensor) -> Tensor:
    """Return a head of a vocabulary that was resized alone."""
    return torch.cat((embedding, embedding[:4]))


def of_transformers(folder: Path) -> Tensor:
    with torch.no_grad():
        found: Tensor = AutoModelForCausalLM.from_pretrained(folder)(torch.tensor([IDS])).logits[0]
    return found


def of_engine(folder: Path, *, own_llama: bool) -> Tensor:
    model, _ = load_model(folder, own_llama=own_llama)
    cache = model.new_cache()
    return model.forward(cache.prefill_batch(0, [IDS], [0], [list(range(len(IDS)))]), cache)


def of_learner(folder: Path) -> Tensor:
    return torch.tensor(ScoringModel.load(folder).logprobs(IDS))


def chosen(logits: Tensor) -> Tensor:
    return logits.log_softmax(-1)[:-1].gather(-1, torch.tensor(IDS)[1:, None])[:, 0]


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize("head", [other, longer])
def test_another_head_in_a_tied_folder_is_refused(
    tied: Path, head: Callable[[Tensor], Tensor], read: Callable[[Path], object]
) -> None:
    read(tied)
    change(tied, head)
    with pytest.raises(
        WeightsError, match=r"config.json: tie_word_embeddings is true, but lm_head"
    ):
        read(tied)


def test_as_the_error_says_the_folder_is_what_transformers_makes_of_it(
    tied: Path, tmp_path: Path
) -> None:
    plain = of_transformers(tied)
    change(tied, other)
    expected = of_transformers(tied)
    assert (chosen(expected) - chosen(plain)).abs().max() > 0.1
    change(tied, None, tie_word_embeddings=False)
    model = ScoringModel.load(tied)
    model.publish(tmp_path / "version", {}, model.weights(IDS), tied)
    for folder in (tied, tmp_path / "version"):
        demand_model(folder)
        torch.testing.assert_close(of_transformers(folder), expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(of_learner(folder), chosen(expected), atol=1e-4, rtol=1e-4)
        for own_llama in (True, False):
            logits = of_engine(folder, own_llama=own_llama)
            torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_head_that_is_the_embedding_is_accepted(
    tied: Path, read: Callable[[Path], object]
) -> None:
    expected = of_transformers(tied)
    change(tied, Tensor.clone)
    read(tied)
    torch.testing.assert_close(of_transformers(tied), expected)
    torch.testing.assert_close(of_engine(tied, own_llama=True), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize("says", [True, False])
def test_an_untied_folder_without_a_head_is_refused(
    tied: Path, says: bool, read: Callable[[Path], object]
) -> None:
    change(tied, None, tie_word_embeddings=False)
    if not says:  # the default of Llama
        config = json.loads((tied / "config.json").read_text())
        del config["tie_word_embeddings"]
        (tied / "config.json").write_text(json.dumps(config))
    with pytest.raises(WeightsError, match="tie_word_embeddings is false, but the folder has no"):
        read(tied)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"model_type": "gemma2"}, "is true"),
        ({"model_type": "gemma2", "tie_word_embeddings": False}, ""),
        ({"model_type": "qwen2"}, ""),
        ({"model_type": "qwen2_vl", "text_config": {"tie_word_embeddings": True}}, "is true"),
        ({"model_type": "gemma3_text"}, "is true"),
        ({"model_type": "../llama"}, ""),
        ({"model_type": "unheard of"}, ""),
    ],
)
def test_the_default_is_that_of_the_family(
    tied: Path, config: dict[str, object], problem: str
) -> None:
    change(tied, other)
    tensors = read_folder(tied)
    if problem:
        with pytest.raises(WeightsError, match=problem):
            demand_head(tied, config, tensors)
    else:
        demand_head(tied, config, tensors)


def test_a_family_that_ties_by_default_may_leave_out_the_head(tied: Path, tmp_path: Path) -> None:
    for folder in (tied, build_folder(tmp_path / "new", tie_word_embeddings=True)):
        change(folder, None, model_type="gemma2")
        config = json.loads((folder / "config.json").read_text())
        del config["tie_word_embeddings"]
        (folder / "config.json").write_text(json.dumps(config))
    change(tied, Tensor.clone)
    check_folder(tmp_path / "new", digest="", depth="sizes", serving=read_weights(tied))


@pytest.mark.parametrize("own_llama", [True, False])
def test_an_update_never_loses_one_of_two_matrices(
    tied: Path, tmp_path: Path, own_llama: bool
) -> None:
    model, config = load_model(tied, own_llama=own_llama)
    embedding = model.tensor(EMBEDDING).clone()
    alone = stage_tensors({HEAD: 2 * embedding}, model, "a broadcast")
    assert torch.equal(alone[EMBEDDING], 2 * embedding)
    both = {HEAD: embedding, EMBEDDING: embedding}
    assert stage_tensors(both, model, "a broadcast").keys() == {EMBEDDING}
    with pytest.raises(WeightsError, match="has other values than"):
        stage_tensors(both | {HEAD: 2 * embedding}, model, "a broadcast")
    folder = build_folder(tmp_path / "new", tie_word_embeddings=True)
    change(folder, other)
    with pytest.raises(WeightsError, match="has other values than"):
        stage_weights(folder, model, config)


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_the_same_weights_in_another_form_are_passed_over(
    tied: Path, read: Callable[[Path], object]
) -> None:
    tensors = load_file(tied / FILE)
    mistral = {"tok_embeddings.weight": tensors[EMBEDDING]}
    save_file(mistral, tied / "consolidated.safetensors")
    read(tied)


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_whole_file_beside_an_index_of_parts_is_refused(
    tied: Path, read: Callable[[Path], object]
) -> None:
    tensors = load_file(tied / FILE)
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, tied / "model-1.safetensors")
    index = tied / f"{FILE}.index.json"
    index.write_text(json.dumps({"weight_map": dict.fromkeys(tensors, "model-1.safetensors")}))
    with pytest.raises(WeightsError, match="which does not name it"):
        read(tied)
    (tied / FILE).unlink()
    read(tied)
