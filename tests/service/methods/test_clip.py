"""A CLIP folder behind `POST /v1/embeddings`, asked as the reward service asks."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
import torch
from starlette.applications import Starlette
from tokenizers.processors import TemplateProcessing
from transformers import CLIPConfig, CLIPModel

from demo.models.tiny_models import END, word_tokenizer
from methods.vlm_rl.clip import ClipModel, routes
from methods.vlm_rl.encoders import ServiceEncoder
from methods.vlm_rl.options import VlmRlOptions
from methods.vlm_rl.relabelling import Relabeller
from services.local_engine.app import guarded
from triforge.errors import InputError, WeightsError
from triforge.testing.pictures import png
from triforge.types import ImageRef
from triforge.vision.files import describe

SIZES = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
}  # fmt: skip
DEVICE = torch.device("cpu")
FILES = {describe(data).id: data for data in (png(), png(40, 24, colour=(10, 200, 60)))}
REFS = [describe(data) for data in FILES.values()]
GOALS = VlmRlOptions(positive=("a red page",), negative=("a green page",), form="weighted")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CLIP with random weights, sized for a test."""
    where = tmp_path_factory.mktemp("clip")
    tokenizer = word_tokenizer(["a", "red", "green", "page"], 16)
    end = tokenizer.convert_tokens_to_ids(END)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, end)]
    )
    tokenizer.save_pretrained(where)
    ids = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": 0}
    text = {**SIZES, **ids, "vocab_size": len(tokenizer), "max_position_embeddings": 16}
    vision = {**SIZES, "image_size": 16, "patch_size": 8}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=8))
    model.save_pretrained(where)
    return where


@pytest.fixture(scope="module")
def app(folder: Path) -> Starlette:
    encoder = ClipModel(folder, device=DEVICE, dtype=torch.float32)
    return guarded(routes(encoder, "clip"), host="127.0.0.1")


async def get(ref: ImageRef) -> bytes:
    return FILES[ref.id]


def asking(app: Starlette) -> ServiceEncoder:
    transport = httpx.ASGITransport(app=app)
    return ServiceEncoder("http://127.0.0.1:1", get, transport=transport)


async def test_single_items_and_batches_have_the_same_embeddings(app: Starlette) -> None:
    encoder = asking(app)
    texts = ["a red page", "green", "a page"]
    for items in (texts, REFS):
        together = await encoder(items)
        alone = [(await encoder([item]))[0] for item in items]
        for one, other in zip(together, alone, strict=True):
            assert one == pytest.approx(other, abs=1e-5)
        assert together[0] != pytest.approx(together[1], abs=1e-3)


async def test_screenshots_are_compared_through_the_service(app: Starlette) -> None:
    rewards = await Relabeller(asking(app), linger_s=0.0).rewards(REFS, GOALS)
    turned = GOALS.model_copy(update={"positive": GOALS.negative, "negative": GOALS.positive})
    opposite = await Relabeller(asking(app), linger_s=0.0).rewards(REFS, turned)
    assert rewards == pytest.approx([-reward for reward in opposite], abs=1e-6)
    assert rewards[0] != pytest.approx(rewards[1], abs=1e-4)


@pytest.mark.parametrize(
    "item", [{}, {"text": "a", "image": "b"}, {"image": "data:image/png;base64,AAAA"}]
)
async def test_an_item_is_a_text_or_an_image(app: Starlette, item: dict[str, str]) -> None:
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:1") as client:
        reply = await client.post("/v1/embeddings", json={"input": [item]})
    assert reply.status_code == 400
    assert "input.0" in reply.json()["message"]


async def test_what_the_encoder_refuses_is_the_callers_error(app: Starlette) -> None:
    broken = describe(png(8, 8))
    FILES[broken.id] = b"no image"
    with pytest.raises(InputError, match="image"):
        await asking(app)([broken])


def test_a_folder_of_another_model_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "clip"}))
    with pytest.raises(WeightsError, match="no CLIP model"):
        ClipModel(tmp_path, device=DEVICE, dtype=torch.float32)
