"""A model that sees, over /generate: log-probabilities are those of a plain forward pass of transformers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoModelForImageTextToText

from demo.models.tiny_models import build_tiny_vision_model
from services.local_engine.detokenize import TextCodec
from services.local_engine.engine import Engine
from services.local_engine.model import load_model
from services.local_engine.scheduler import Limits
from tests.unit.local_engine.wire import client_of, scores
from triforge.testing.pictures import png
from triforge.vision.files import data_uri, describe
from triforge.vision.image_spec import ImageSpec, pixels_of

USER, ASSISTANT, BEGIN, STOP, PAD, VIDEO, FIRST = 4, 5, 6, 7, 8, 9, 10
WORDS = [f"w{i}" for i in range(40)]
SHOTS = [png(60, 90), png(112, 112, colour=(0, 200, 9)), png(28, 28, colour=(9, 9, 200))]
IMAGE = [BEGIN, PAD, STOP]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_vision_model(tmp_path_factory.mktemp("seeing") / "model", WORDS, seed=3)


@pytest.fixture
async def client(folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    model, config = load_model(folder)
    engine = Engine(model, config, TextCodec(folder), folder, limits=Limits(max_running=8), seed=1)
    engine.start()
    async with client_of(engine) as opened:
        yield opened
    engine.stop()


class Plain:
    """transformers' own forward pass, with its own positions."""

    def __init__(self, folder: Path) -> None:
        self.model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
        found = ImageSpec.of_folder(folder)
        assert found is not None
        self.image_spec = found

    @torch.inference_mode()
    def logprobs(self, short: list[int], shots: list[bytes], output: list[int]) -> list[float]:
        refs = [describe(shot) for shot in shots]
        ids, places = self.image_spec.expanded(short, refs)
        kinds = torch.zeros(1, len(ids) + len(output) - 1, dtype=torch.int32)
        for place in places:
            kinds[0, place.start : place.end] = 1
        seen: dict[str, Any] = {}
        if shots:
            pixels = [pixels_of(s, r, self.image_spec) for s, r in zip(shots, refs, strict=True)]
            seen = {
                "pixel_values": torch.cat([torch.from_numpy(p) for p in pixels]),
                "image_grid_thw": torch.tensor([[1, *self.image_spec.grid(ref)] for ref in refs]),
                "mm_token_type_ids": kinds,
            }
        logits = self.model(input_ids=torch.tensor([[*ids, *output[:-1]]]), **seen).logits[0]
        full = torch.log_softmax(logits[len(ids) - 1 :], dim=-1)
        return full.gather(1, torch.tensor(output)[:, None])[:, 0].tolist()

    def check(self, ids: list[int], shots: list[bytes], result: dict[str, Any]) -> None:
        """Compare as far as transformers can go: it takes an image token that was sampled for one of an image."""
        output = result["output_ids"]
        strays = [n for n, token in enumerate(output) if token in (PAD, VIDEO)]
        end = (strays[0] if strays else len(output)) + 1
        expected = self.logprobs(ids, shots, output[:end])
        assert scores(result)[:end] == pytest.approx(expected, abs=1e-4)


@pytest.fixture(scope="module")
def plain(folder: Path) -> Plain:
    return Plain(folder)


def prompt(*pieces: Any) -> tuple[list[int], list[bytes], list[str]]:
    """Ids, images and their URIs of a prompt of words (by number) and images."""
    ids, shots = [USER], []
    for piece in pieces:
        if isinstance(piece, bytes):
            ids += IMAGE
            shots.append(piece)
        else:
            ids.append(FIRST + piece)
    return [*ids, ASSISTANT], shots, [data_uri(describe(s), s) for s in shots]


FREE = {"max_new_tokens": 12, "ignore_eos": True}


async def ask(client: httpx.AsyncClient, ids: Any, images: Any, **more: Any) -> Any:
    body = {"input_ids": ids, "image_data": images, "return_logprob": True}
    reply = await client.post("/generate", json={**body, "sampling_params": FREE, **more})
    assert reply.status_code == 200, reply.text
    return reply.json()


async def test_logprobs_are_those_of_a_plain_forward_pass(
    client: httpx.AsyncClient, plain: Plain
) -> None:
    asked = [
        prompt(1, SHOTS[0], 2, 3),
        prompt(SHOTS[1], 4, SHOTS[2], 5),
        prompt(6, 7, 8),
        prompt(SHOTS[0], SHOTS[1], SHOTS[2], 9),
    ]
    results = await ask(
        client,
        [ids for ids, _, _ in asked],
        [uris or None for _, _, uris in asked],
    )
    for (ids, shots, _), result in zip(asked, results, strict=True):
        assert len(result["output_ids"]) == 12
        plain.check(ids, shots, result)
        images = plain.image_spec.expanded(ids, [describe(s) for s in shots])[0]
        assert result["meta_info"]["prompt_tokens"] == len(images)


async def test_a_cached_prefix_is_used_only_behind_the_same_image(
    client: httpx.AsyncClient, plain: Plain
) -> None:
    ids, shots, uris = prompt(SHOTS[1], *range(8))
    other = png(112, 112, colour=(77, 3, 3))
    first = await ask(client, ids, uris)
    again = await ask(client, ids, uris)
    changed = await ask(client, ids, [data_uri(describe(other), other)])
    assert first["meta_info"]["cached_tokens"] == 0
    assert again["meta_info"]["cached_tokens"] == again["meta_info"]["prompt_tokens"] - 1
    assert changed["meta_info"]["cached_tokens"] == 2  # <user> and the image's begin
    for result, image in ((again, shots[0]), (changed, other)):
        plain.check(ids, [image], result)


async def test_many_samples_and_a_second_turn_agree_as_well(
    client: httpx.AsyncClient, plain: Plain
) -> None:
    ids, shots, uris = prompt(SHOTS[0], 1)
    results = await ask(client, ids, uris, sampling_params=FREE | {"n": 3, "sampling_seed": 4})
    assert len({tuple(result["output_ids"]) for result in results}) == 3
    for result in results:
        plain.check(ids, shots, result)
    replayed = [t if t not in (PAD, VIDEO) else FIRST for t in results[0]["output_ids"]]
    more, further, new = prompt(3, SHOTS[2], 4)
    turn = [*ids, *replayed, *more]
    result = await ask(client, turn, [*uris, *new])
    plain.check(turn, [*shots, *further], result)


async def test_images_are_gone_while_the_memory_is_released(folder: Path, plain: Plain) -> None:
    model, config = load_model(folder)
    seeing: Any = model
    engine = Engine(model, config, TextCodec(folder), folder, limits=Limits(max_running=8), seed=1)
    ids, shots, uris = prompt(SHOTS[0], 1, 2)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(engine.stop)
        engine.start()
        client = await stack.enter_async_context(client_of(engine))
        await ask(client, ids, uris)
        assert len(seeing._embedded) == 1
        await client.post("/release_memory_occupation", json={})
        assert len(seeing._embedded) == 0
        await client.post("/resume_memory_occupation", json={})
        await client.post("/continue_generation", json={})
        plain.check(ids, shots, await ask(client, ids, uris))


async def test_new_weights_look_at_the_image_anew(
    client: httpx.AsyncClient, folder: Path, tmp_path: Path
) -> None:
    other = build_tiny_vision_model(tmp_path / "other", WORDS, seed=8)
    ids, shots, uris = prompt(SHOTS[0], 1, 2)
    await ask(client, ids, uris)
    body = {"model_path": str(other), "weight_version": "2"}
    reply = await client.post("/update_weights_from_disk", json=body)
    assert reply.status_code == 200, reply.text
    result = await ask(client, ids, uris)
    assert result["meta_info"]["weight_version"] == "2"
    Plain(other).check(ids, shots, result)


@pytest.mark.parametrize(
    ("images", "reason"),
    [
        (["data:image/png;base64,AAAA"], "expected a PNG or JPEG"),
        ([data_uri(describe(SHOTS[0]), SHOTS[0])] * 2, "1 image tokens for 2 images"),
        (["/etc/passwd"], "expected data:image"),
        ([7], "expected a data: URI"),
    ],
)
async def test_images_that_do_not_fit_are_refused(
    client: httpx.AsyncClient, images: list[Any], reason: str
) -> None:
    ids, _, _ = prompt(SHOTS[0], 1)
    body = {"input_ids": ids, "image_data": images}
    reply = await client.post("/generate", json=body)
    assert reply.status_code == 400
    assert reason in reply.json()["error"]["message"]
