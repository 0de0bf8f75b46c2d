"""A CLIP folder behind `POST /v1/embeddings`, asked as the reward service asks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from starlette.applications import Starlette
from tokenizers.processors import TemplateProcessing
from transformers import CLIPConfig, CLIPModel

from demo.models.tiny_models import END, word_tokenizer
from environments.desktop.family import FAMILY as DESKTOP
from environments.gui.actions import call
from environments.miniwob.family import FAMILY as MINIWOB
from methods.vlm_rl.clip import ClipModel, routes
from methods.vlm_rl.encoders import ServiceEncoder
from methods.vlm_rl.options import VlmRlOptions
from methods.vlm_rl.relabelling import Relabeller
from methods.vlm_rl.scores import relabelled
from services.local_engine.app import guarded
from tests.unit.environments.test_desktop import needs_a_screen
from tests.unit.environments.test_miniwob import absent
from tests.unit.rollout.counting import group
from tests.unit.rollout.test_screenshots import Seeing
from triforge.errors import InputError, WeightsError
from triforge.rollout.episode import play_episode
from triforge.store.artifacts import ArtifactStore
from triforge.store.images import ImageStore
from triforge.testing.pictures import png
from triforge.types import GenerateOutput, ImageRef, Task
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


class Says(Seeing):
    """A policy that sees, and says these responses one after another."""

    def __init__(self, responses: Sequence[str]) -> None:
        super().__init__()
        self._responses = iter(responses)

    def output(self) -> GenerateOutput:
        return super().output().model_copy(update={"text": next(self._responses)})


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("family", "wanted", "options", "responses"),
    [
        pytest.param(
            MINIWOB, {"tasks": ["enter-text"], "horizon": 4}, {"browsers": 1},
            [call("left_click", coordinate=[484, 335]), call("type", text="Myron"), call("left_click", coordinate=[396, 507])],
            marks=pytest.mark.skipif(bool(absent()), reason=absent() or "installed"), id="miniwob",
        ),
        pytest.param(
            DESKTOP, {"sorts": ["rename"], "horizon": 3}, {"settle_s": 60.0, "verify_s": 30.0},
            [call("type", text="echo red\n"), call("type", text="echo blue\n"), call("terminate", status="failure")],
            marks=needs_a_screen, id="desktop",
        ),
    ],
)  # fmt: skip
async def test_what_a_page_and_a_desktop_show_is_scored_through_a_clip_folder(
    app: Starlette, tmp_path: Path, family: Any, wanted: Any, options: Any, responses: Sequence[str]
) -> None:
    (params,) = family.generate(count=1, seed=5, options=wanted)
    task = Task(
        id="t", pool_id="p", slot="t", family=family.name, instruction=family.validate(params).instruction,
        params=params,
    )  # fmt: skip
    asked = group(votes=1, deadline_s=200.0, max_steps=4)
    images = ImageStore(ArtifactStore(str(tmp_path)))
    options |= {"actions": "computer_use", "observe": "screenshot"}
    played = await play_episode(
        lambda: family.make(options),
        Says(responses), task, asked, 0, keep=images.put,
    )  # fmt: skip
    assert played.measured, played.outcome
    transport = httpx.ASGITransport(app=app)
    encoder = ServiceEncoder("http://127.0.0.1:1", images.get, transport=transport)
    first, again = [
        await relabelled(Relabeller(encoder, linger_s=0.0), played, GOALS) for _ in range(2)
    ]
    assert first == again
    seen = {step.index: step.next_images[-1].id for step in played.steps if step.next_images}
    scores = {step.step: step.score for step in first.steps}
    assert scores.keys() == seen.keys()
    assert all(score is not None and -1.0 <= score <= 1.0 for score in scores.values())
    assert len({scores[n] for n in seen}) == len(set(seen.values())) > 1


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
