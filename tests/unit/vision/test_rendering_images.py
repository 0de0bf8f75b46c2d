"""Conversations with images become ids: as many tokens an image as the model sees, nothing tokenised twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from demo.models.tiny_models import build_tiny_vision_model
from triforge.errors import InputError
from triforge.rendering import Renderer
from triforge.testing.model_folders import words_folder
from triforge.testing.pictures import png
from triforge.types import ChatMessage, ImagePart, PlacedImage, TextPart
from triforge.vision.files import describe

WORDS = ("go", "see", "cup", "left", "task")
END, USER, ASSISTANT, BEGIN, STOP, PAD, VIDEO, GO, SEE, CUP = 2, 4, 5, 6, 7, 8, 9, 10, 11, 12
SMALL, LARGE = describe(png(28, 28)), describe(png(60, 90))  # 1 and 6 tokens


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_vision_model(tmp_path_factory.mktemp("seeing") / "model", WORDS)


@pytest.fixture(scope="module")
def renderer(folder: Path) -> Renderer:
    return Renderer.from_folder(folder)


def shown(*parts: object) -> ChatMessage:
    made = [TextPart(text=p) if isinstance(p, str) else ImagePart(image=p) for p in parts]
    return ChatMessage(role="user", content=tuple(made))


def test_an_image_becomes_its_tokens_where_it_stands(renderer: Renderer) -> None:
    ids, placed = renderer.extend_seeing((), (), [shown("see", SMALL, "go", LARGE, "cup")])
    assert ids == [USER, SEE, BEGIN, PAD, STOP, GO, BEGIN, *[PAD] * 6, STOP, CUP, ASSISTANT]
    assert [(p.image, p.start, p.end) for p in placed] == [(SMALL, 3, 4), (LARGE, 7, 13)]
    assert renderer.vocab_size == 15


def test_the_ids_are_those_of_transformers_template(renderer: Renderer, folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    chat = [
        {"role": "system", "content": "task"},
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "see cup"}]},
    ]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    wide = text.replace("<|image_pad|>", " ".join(["<|image_pad|>"] * 6))
    found, _ = renderer.extend_seeing(
        (), (), [ChatMessage(role="system", content="task"), shown(LARGE, "see cup")]
    )
    assert found == tokenizer(wide, add_special_tokens=False).input_ids


def test_the_conversation_goes_on_behind_the_prefix_and_its_images(renderer: Renderer) -> None:
    first, placed = renderer.extend_seeing((), (), [shown(SMALL, "see")])
    prefix = [*first, GO, END]
    ids, both = renderer.extend_seeing(prefix, placed, [shown(LARGE, "go")])
    assert ids == [*prefix, USER, BEGIN, *[PAD] * 6, STOP, GO, ASSISTANT]
    assert both[:1] == placed
    start = len(prefix) + 2
    assert (both[1].start, both[1].end) == (start, start + 6)


def test_an_image_token_that_was_sampled_gives_way_to_another(renderer: Renderer) -> None:
    first, placed = renderer.extend_seeing((), (), [shown(SMALL, "see")])
    ids, _ = renderer.extend_seeing([*first, PAD, GO, VIDEO, END], placed, [shown("go")])
    unknown = 1
    assert ids == [*first, unknown, GO, unknown, END, USER, GO, ASSISTANT]


def test_the_name_of_an_image_token_in_a_text_is_only_text(renderer: Renderer) -> None:
    ids, placed = renderer.extend_seeing(
        (), (), [shown(SMALL, "see <|image_pad|> <|vision_start|>")]
    )
    assert ids == [USER, BEGIN, PAD, STOP, SEE, 1, 1, ASSISTANT]
    assert len(placed) == 1


def test_text_alone_is_rendered_as_ever_by_a_model_that_sees(renderer: Renderer) -> None:
    message = ChatMessage(role="user", content="see cup")
    assert renderer.render([message]) == renderer.extend_seeing((), (), [message])[0]
    assert renderer.render([shown("see ", "cup")]) == renderer.render([message])


def test_a_model_that_sees_nothing_refuses_images(tmp_path: Path) -> None:
    blind = Renderer.from_folder(words_folder(tmp_path, WORDS))
    with pytest.raises(InputError, match="no vision model"):
        blind.extend_seeing((), (), [shown(SMALL, "see")])
    with pytest.raises(InputError, match="expected text only"):
        blind.render([shown(SMALL, "see")])


def test_images_that_do_not_stand_in_the_prefix_are_refused(renderer: Renderer) -> None:
    placed = PlacedImage(image=LARGE, start=3, end=9)
    with pytest.raises(InputError, match="out of order"):
        renderer.extend_seeing([USER, SEE, BEGIN, PAD], (placed,), [shown("go")])
    wrong = PlacedImage(image=LARGE, start=1, end=3)
    with pytest.raises(InputError, match="expected the 6"):
        renderer.extend_seeing([USER, SEE, BEGIN, PAD], (wrong,), [shown("go")])
    wrong = PlacedImage(image=SMALL, start=1, end=2)
    with pytest.raises(InputError, match="other tokens"):
        renderer.extend_seeing([USER, SEE, BEGIN, PAD], (wrong,), [shown("go")])
