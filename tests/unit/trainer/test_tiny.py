from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from demo.models.tiny_models import TinyShape, build_tiny_model, words_of
from triforge.errors import InputError, WeightsError
from triforge.rendering import Renderer
from triforge.store.manifests import verify_manifest
from triforge.types import ChatMessage

CHAT = [
    ChatMessage(role="user", content="ok apple"),
    ChatMessage(role="assistant", content="go fridge"),
    ChatMessage(role="user", content="fail"),
]
# <user> ok apple <assistant> go fridge <end> <user> fail <assistant>
CHAT_IDS = [4, 13, 11, 5, 6, 9, 2, 4, 14, 5]


def test_the_renderer_and_transformers_agree_on_a_chat(model_folder: Path):
    assert Renderer.from_folder(model_folder).render(CHAT) == CHAT_IDS
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    chat = [message.model_dump() for message in CHAT]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == "<user> ok apple <assistant> go fridge <end> <user> fail <assistant>"
    assert tokenizer(text).input_ids == CHAT_IDS


def test_a_response_that_was_cut_off_is_closed_before_the_next_message(model_folder: Path):
    renderer = Renderer.from_folder(model_folder)
    cut = [*renderer.render(CHAT[:1]), 6, 9]
    assert renderer.extend(cut, CHAT[2:]) == renderer.extend([*cut, 2], CHAT[2:]) == CHAT_IDS


def test_ids_decode_to_words_with_single_blanks(model_folder: Path):
    renderer = Renderer.from_folder(model_folder)
    assert renderer.decode([6, 9, 2]) == "go fridge"
    assert renderer.eos_ids == (2,)
    assert renderer.encode_text("go elsewhere") == [6, 1], "one unknown token"


def test_the_same_seed_gives_the_same_folder_byte_for_byte(tmp_path: Path):
    shape = TinyShape(hidden=8, layers=1, heads=1, max_positions=16)
    state = torch.get_rng_state()
    digests = [
        verify_manifest(build_tiny_model(tmp_path / name, ["a", "b"], shape=shape, seed=seed))
        for name, seed in (("x", 1), ("y", 1), ("z", 2))
    ]
    assert digests[0] == digests[1] != digests[2]
    assert torch.equal(torch.get_rng_state(), state), "the global random state is left alone"


def test_repeated_words_count_once_and_the_order_fixes_the_ids(tmp_path: Path):
    shape = TinyShape(hidden=8, layers=1, heads=1)
    folder = build_tiny_model(tmp_path / "m", ["b", "a", "b"], shape=shape)
    assert Renderer.from_folder(folder).encode_text("a b") == [7, 6]


@pytest.mark.parametrize("words", [[], ["two words"], [""], ["<end>"]])
def test_impossible_vocabularies_are_refused(tmp_path: Path, words: list[str]):
    with pytest.raises(InputError, match="words: given"):
        build_tiny_model(tmp_path / "m", words)
    assert list(tmp_path.iterdir()) == []


def test_sizes_that_do_not_fit_are_refused(tmp_path: Path):
    with pytest.raises(InputError, match="given 10 with 4 heads, expected a multiple of 8"):
        build_tiny_model(tmp_path / "m", ["a"], shape=TinyShape(hidden=10))


def test_an_existing_folder_is_kept_unless_replacing_is_asked_for(tmp_path: Path):
    shape = TinyShape(hidden=8, layers=1, heads=1)
    folder = build_tiny_model(tmp_path / "m", ["a"], shape=shape)
    with pytest.raises(WeightsError, match="exists"):
        build_tiny_model(folder, ["b"], shape=shape)
    assert Renderer.from_folder(folder).encode_text("a") == [6]
    build_tiny_model(folder, ["b"], shape=shape, replace=True)
    assert Renderer.from_folder(folder).encode_text("b") == [6]


def test_words_of_texts_leave_out_special_tokens():
    assert words_of(["<user> go b", "a go"]) == ["a", "b", "go"]
