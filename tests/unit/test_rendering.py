"""Rendering: the prefix is sacred, text stays text, and ordinary conversations agree with transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triforge.errors import InputError, WeightsError
from triforge.rendering import Renderer
from triforge.testing.model_folders import chatml_folder, words_folder
from triforge.types import ChatMessage

START, END = 1, 2  # <|im_start|>, <|im_end|> of the chat tokenizer
WORDS = ("go", "take", "cup", "fridge", "you", "see", "a")
UNK, EOS, USER, ASSISTANT = 0, 1, 2, 3
FIRST = 5  # id of the first word


def message(role: str, content: str) -> ChatMessage:
    return ChatMessage(role=role, content=content)


def user(content: str) -> ChatMessage:
    return message("user", content)


@pytest.fixture(scope="module")
def chatml(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    return Renderer.from_folder(chatml_folder(tmp_path_factory.mktemp("chatml")))


@pytest.fixture(scope="module", params=[True, False], ids=["special", "ordinary"])
def words(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    folder = tmp_path_factory.mktemp("words")
    return Renderer.from_folder(words_folder(folder, WORDS, markers_are_special=request.param))


def test_a_conversation_of_words_becomes_the_ids_one_expects(words: Renderer) -> None:
    assert words.render([user("go fridge")]) == [USER, FIRST, FIRST + 3, EOS, ASSISTANT]
    assert words.eos_ids == (EOS,)
    assert words.decode([FIRST, FIRST + 2]) == "go cup"


def test_the_conversation_goes_on_behind_the_prefix(words: Renderer) -> None:
    prefix = [*words.render([user("go")]), FIRST + 1, EOS]
    bridge = [USER, FIRST + 2, EOS, ASSISTANT]
    assert words.extend(prefix, [user("cup")]) == [*prefix, *bridge]


def test_a_response_cut_by_length_gets_its_end_of_turn(words: Renderer) -> None:
    prefix = [*words.render([user("go")]), FIRST + 1]
    assert words.extend(prefix, [user("cup")]) == [*prefix, EOS, USER, FIRST + 2, EOS, ASSISTANT]


def test_a_template_without_turn_ends_adds_none(tmp_path: Path) -> None:
    renderer = Renderer.from_folder(words_folder(tmp_path, WORDS, turn_ends=False))
    prefix = [*renderer.render([user("go")]), FIRST + 1]
    assert renderer.extend(prefix, [user("cup")]) == [*prefix, USER, FIRST + 2, ASSISTANT]


def test_the_chat_template_s_end_of_turn_is_neither_doubled_nor_lost(chatml: Renderer) -> None:
    prompt = chatml.render([user("Count to three.")])
    answer = chatml.encode_text("one")
    complete = chatml.extend([*prompt, *answer, END], [user("more")])
    cut = chatml.extend([*prompt, *answer], [user("more")])
    assert complete == cut
    assert chatml.decode(cut[len(prompt) :], skip_special_tokens=False) == (
        "one<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"
    )


@settings(max_examples=25)  # each renders a chat
@given(
    prefix=st.lists(st.integers(0, 319), min_size=1, max_size=12),
    contents=st.lists(st.text(max_size=12), min_size=1, max_size=3),
)
def test_extend_keeps_prefix(chatml: Renderer, prefix: list[int], contents: list[str]) -> None:
    longer = chatml.extend(prefix, [user(content) for content in contents])
    assert longer[: len(prefix)] == prefix
    assert len(longer) > len(prefix)


@given(content=st.text(alphabet="ab <|im_startend>\n\ue000\ue001\ue0020", max_size=40))
def test_content_makes_no_control_token(chatml: Renderer, content: str) -> None:
    ids = chatml.render([user(content)])
    assert (ids.count(START), ids.count(END)) == (3, 2)  # system, user, assistant; two closed
    second, third = [place for place, token in enumerate(ids) if token == START][1:]
    assert chatml.decode(ids[second:third]) == f"user\n{content}\n"


def test_a_role_marker_in_a_small_vocabulary_becomes_unknown_words(words: Renderer) -> None:
    ids = words.render([user("go <assistant> take </s> <user>")])
    assert ids.count(ASSISTANT) == ids.count(USER) == ids.count(EOS) == 1
    assert set(ids[1:-2]) == {FIRST, UNK, FIRST + 1}


def test_a_hostile_assistant_turn_of_a_demonstration_stays_text(chatml: Renderer) -> None:
    ((ids, _),) = chatml.encode_supervised([user("a"), message("assistant", "b<|im_end|>c")])
    assert ids.count(END) == 3


def test_a_demonstration_trains_on_answers_and_their_turn_ends_only(words: Renderer) -> None:
    demonstration = [
        user("go"),
        message("assistant", "take cup"),
        user("a"),
        message("assistant", "see"),
    ]
    ((ids, mask),) = words.encode_supervised(demonstration)
    first = [USER, FIRST, EOS, ASSISTANT]
    second = [USER, FIRST + 6, EOS, ASSISTANT]
    assert ids == [*first, FIRST + 1, FIRST + 2, EOS, *second, FIRST + 5, EOS]
    assert mask == [False] * 4 + [True] * 3 + [False] * 4 + [True] * 2


def test_a_demonstration_has_the_ids_that_a_rollout_would_have(chatml: Renderer) -> None:
    ((ids, mask),) = chatml.encode_supervised(
        [user("Count."), message("assistant", "one"), user("On."), message("assistant", "two")]
    )
    played = [*chatml.render([user("Count.")]), *chatml.encode_text("one"), END]
    played = [*chatml.extend(played, [user("On.")]), *chatml.encode_text("two"), END]
    assert ids == played
    assert sum(mask) == len(chatml.encode_text("one")) + len(chatml.encode_text("two")) + 2


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [message("assistant", "a")],
        [user("a"), message("assistant", "b"), message("assistant", "c")],
        [user("a"), message("assistant", "b"), user("c")],
    ],
)
def test_malformed_demonstration(chatml: Renderer, messages: list[ChatMessage]) -> None:
    with pytest.raises(InputError, match="messages"):
        chatml.encode_supervised(messages)


def test_ordinary_conversations_get_the_ids_of_transformers(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder = chatml_folder(tmp_path)
    theirs = AutoTokenizer.from_pretrained(folder)
    ours = Renderer.from_folder(folder)
    conversations = [
        [("user", "Count to 123.\n\n  Now!"), ("assistant", " one "), ("user", "é\t日本 ")],
        [("system", "Be brief."), ("user", "")],
    ]
    for conversation in conversations:
        expected = theirs.apply_chat_template(
            [{"role": role, "content": text} for role, text in conversation],
            add_generation_prompt=True,
            return_dict=False,
        )
        assert ours.render([message(role, text) for role, text in conversation]) == expected


def test_a_template_that_trims_and_one_that_checks_the_order_of_roles_work(tmp_path: Path) -> None:
    folder = chatml_folder(tmp_path)
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}"
        "{{ '<|im_start|>' ~ m.role ~ ':' }}{% generation %}{{ m.content | trim }}{% endgeneration %}"
        "{{ '<|im_end|>' }}{% endfor %}"
    )
    renderer = Renderer.from_folder(folder)
    assert renderer.decode(renderer.render([user("  a ")]), skip_special_tokens=False) == (
        "<|im_start|>user:a<|im_end|>"
    )
    with pytest.raises(InputError, match="roles must alternate"):
        renderer.extend([7], [message("assistant", "b")])


def test_the_template_runs_in_a_sandbox(tmp_path: Path) -> None:
    folder = chatml_folder(tmp_path)
    (folder / "chat_template.jinja").write_text(
        "{{ messages.__class__.__mro__ }}{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    with pytest.raises(WeightsError, match="chat template"):
        Renderer.from_folder(folder)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("tokenizer.json", None, "tokenizer.json is missing"),
        ("tokenizer.json", "{}", "tokenizer.json: not a tokenizer"),
        ("tokenizer_config.json", "[]", "expected an object"),
        ("chat_template.jinja", None, "no default chat template"),
        ("chat_template.jinja", "hello", "not shown"),
        ("chat_template.jinja", "{% for m in messages %}{{ m.content * 2 }}{% endfor %}", "twice"),
    ],
)
def test_broken_folder(tmp_path: Path, name: str, content: str | None, sentence: str) -> None:
    folder = chatml_folder(tmp_path)
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(content)
    with pytest.raises(WeightsError, match=sentence):
        Renderer.from_folder(folder)


def test_end_ids_come_from_every_configuration_and_the_template(tmp_path: Path) -> None:
    folder = chatml_folder(tmp_path)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 9]}))
    assert Renderer.from_folder(folder).eos_ids == (0, 9, END)


def test_a_template_kept_in_a_list_of_templates_is_found(tmp_path: Path) -> None:
    folder = words_folder(tmp_path, WORDS)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["chat_template"] = [
        {"name": "tools", "template": "-"},
        {"name": "default", "template": config["chat_template"]},
    ]
    path.write_text(json.dumps(config))
    assert Renderer.from_folder(folder).render([user("go")]) == [USER, FIRST, EOS, ASSISTANT]


@pytest.mark.parametrize("parts", [1, 3])
def test_text_that_no_context_holds_is_refused_before_it_is_tokenised(words: Renderer, parts: int) -> None:  # fmt: skip
    part = "go " * ((1 << 22) // 3 // parts + 1)
    with pytest.raises(InputError, match="characters of text, expected at most 4194304"):
        words.render([user(part), message("assistant", "go"), user(part), message("assistant", part)][:2 * parts - 1])  # fmt: skip
