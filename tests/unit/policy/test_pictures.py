"""Images through the policy service: references in, one token and one data URI an image out, exact ids back."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from demo.models.tiny_models import build_tiny_vision_model
from tests.fake_engine import FakeEngine
from tests.unit.policy.conftest import Service
from triforge.errors import InputError, NotFoundError, PolicyError
from triforge.store.artifacts import ArtifactStore
from triforge.store.images import ImageStore
from triforge.testing.pictures import png
from triforge.types import ChatMessage, GenerateRequest, ImagePart, ImageRef, Sampling, TextPart
from triforge.vision.files import data_uri, describe

END, USER, ASSISTANT, BEGIN, STOP, PAD, GO, SEE = 2, 4, 5, 6, 7, 8, 10, 11
TOKENS = 6  # of an image of 60 x 90 pixels
SHOT = png(60, 90)


class Seeing(FakeEngine):
    """Counts every image as so many tokens, whatever it shows."""

    counted = TOKENS

    def _result(self, ids: list[int], *rest: Any) -> dict[str, Any]:
        found = super()._result(ids, *rest)
        found["meta_info"]["prompt_tokens"] += (self.counted - 1) * ids.count(PAD)
        return found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seeing") / "model"
    return build_tiny_vision_model(folder, ("go", "see", "cup"))


@pytest.fixture
def images(tmp_path: Path) -> ImageStore:
    return ImageStore(ArtifactStore(str(tmp_path)))


@pytest.fixture
async def service(model: Path, images: ImageStore) -> Service:
    fake = Seeing(answer=lambda *_: [GO, END], version="3", model_path=str(model))
    fake.weights.load(str(model))
    service = Service({"http://a": fake}, model, images=images)
    await service.start()
    return service


def message(*images: ImageRef, text: str = "see") -> ChatMessage:
    parts = [ImagePart(image=image) for image in images]
    return ChatMessage(role="user", content=(*parts, TextPart(text=text)))


async def test_the_engine_gets_one_token_an_image_and_its_bytes(
    service: Service, images: ImageStore
) -> None:
    ref = await images.put(SHOT)
    (reply,) = await service.gateway.generate([GenerateRequest(messages=(message(ref),))])
    (body,) = service.generate_bodies()
    assert body["input_ids"] == [[USER, BEGIN, PAD, STOP, SEE, ASSISTANT]]
    assert body["image_data"] == [[data_uri(ref, SHOT)]]
    assert reply.prompt_ids == (USER, BEGIN, *[PAD] * TOKENS, STOP, SEE, ASSISTANT)
    assert [(p.image, p.start, p.end) for p in reply.images] == [(ref, 2, 8)]


async def test_the_next_turn_echoes_the_expanded_ids_and_sends_all_images(
    service: Service, images: ImageStore
) -> None:
    first = await images.put(SHOT)
    second = await images.put(png(61, 91))
    (reply,) = await service.gateway.generate([GenerateRequest(messages=(message(first),))])
    prefix = (*reply.prompt_ids, *reply.outputs[0].ids)
    request = GenerateRequest(
        prefix_ids=prefix, prefix_images=reply.images, messages=(message(second),)
    )
    (further,) = await service.gateway.generate([request])
    assert further.prompt_ids[: len(prefix)] == prefix
    body = service.generate_bodies()[1]
    new = [BEGIN, PAD, STOP, SEE, ASSISTANT]
    assert body["input_ids"] == [[USER, *new, GO, END, USER, *new]]
    assert [len(shots) for shots in body["image_data"]] == [2]
    assert [p.image for p in further.images] == [first, second]


async def test_prompts_with_images_and_without_travel_apart_and_come_back_in_order(
    service: Service, images: ImageStore
) -> None:
    ref = await images.put(SHOT)
    words = GenerateRequest(messages=(ChatMessage(role="user", content="see"),))
    seeing = GenerateRequest(messages=(message(ref),), n=2, sampling=Sampling(seed=7))
    replies = await service.gateway.generate([words, seeing, words])
    assert [len(reply.images) for reply in replies] == [0, 1, 0]
    assert [len(reply.outputs) for reply in replies] == [1, 2, 1]
    assert sorted("image_data" in body for body in service.generate_bodies()) == [False, True]
    assert [len(body["input_ids"]) for body in service.generate_bodies()] == [2, 2]


async def test_an_engine_that_sees_other_tokens_than_we_do_is_found_out(
    service: Service, images: ImageStore
) -> None:
    ref = await images.put(SHOT)
    engine: Any = service.fakes[0]
    engine.counted = TOKENS + 1
    with pytest.raises(PolicyError, match=r"counts 12 prompt tokens where we count 11.*preproc"):
        await service.gateway.generate([GenerateRequest(messages=(message(ref),))])


async def test_an_image_that_was_not_kept_is_named(service: Service) -> None:
    ref = describe(SHOT)
    with pytest.raises(NotFoundError, match=ref.id):
        await service.gateway.generate([GenerateRequest(messages=(message(ref),))])
    assert service.generate_bodies() == []


async def test_images_in_a_request_to_a_model_of_words_are_refused(service: Service) -> None:
    service.weights.renderer.image_spec = None  # as of a model of words
    with pytest.raises(InputError, match=r"requests\.0: .*no vision model"):
        await service.gateway.generate([GenerateRequest(messages=(message(describe(SHOT)),))])


def chat(url: str, **more: object) -> dict[str, object]:
    parts = [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": "go"},
    ]
    return {"model": "policy", "messages": [{"role": "user", "content": parts}], **more}


async def test_the_openai_api_takes_images_as_data_uris_and_keeps_nothing(
    service: Service, tmp_path: Path
) -> None:
    url = data_uri(describe(SHOT), SHOT)
    async with service.client() as client:
        response = await client.post("/v1/chat/completions", json=chat(url))
        assert response.status_code == 200, response.text
        assert response.json()["usage"]["prompt_tokens"] == 6 + TOKENS
        streamed = await client.post("/v1/chat/completions", json=chat(url, stream=True))
        assert streamed.text.endswith("data: [DONE]\n\n")
    whole, piecewise = service.generate_bodies()
    assert whole["input_ids"] == [[USER, SEE, BEGIN, PAD, STOP, GO, ASSISTANT]]
    assert piecewise["input_ids"] == whole["input_ids"][0]
    assert whole["image_data"] == [[url]]
    assert piecewise["image_data"] == [url]
    assert not (tmp_path / "images").exists()


@pytest.mark.parametrize(
    "url",
    [
        "http://host/shot.png",
        "file:///etc/passwd",
        "data:image/png;base64," + base64.b64encode(SHOT[:-9]).decode(),
        "data:image/png;base64,AAAA",
    ],
)
async def test_the_openai_api_refuses_what_is_no_image(service: Service, url: str) -> None:
    async with service.client() as client:
        response = await client.post("/v1/chat/completions", json=chat(url))
    assert response.status_code == 422
    assert "image_url" in response.json()["detail"]
    assert service.generate_bodies() == []
