"""A model folder that is meant to do harm is refused with a sentence, and soon."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, pre_tokenizers

from services.policy.weights.folder import read_weights
from triforge.errors import InputError, WeightsError
from triforge.rendering import Renderer
from triforge.store.manifests import load_manifest
from triforge.store.model_digest import model_digest
from triforge.store.tensor_files import demand_layers, demand_numbers, read_folder
from triforge.testing.model_folders import chatml_folder
from triforge.types import ChatMessage

DEEP = "[" * 100_000
ENDLESS = "{% for a in range(99999) %}" * 5 + "{% endfor %}" * 5

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return chatml_folder(tmp_path / "model")


def user(content: str) -> ChatMessage:
    return ChatMessage(role="user", content=content)


def template(body: str) -> str:
    """A good template behind what does harm once a message says `harm`."""
    return (
        "{% if messages[-1].content == 'harm' %}" + body + "{% endif %}"
        "{% for m in messages %}{{ m.role ~ ':' ~ m.content ~ '<|im_end|>' }}{% endfor %}"
    )


HARM = {
    "macros": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
        "2 s of processor time",
    ),
    "a macro without an end": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    "text of a template": (
        "{% for a in range(99999) %}" + "x" * 10_000 + "{% endfor %}",
        "writes more than",
    ),
    "a product": ("{{ 'x' * 10000000000 }}", "the size 10000000000"),
    "a power": ("{{ 9 ** 9999999999 }}", "the size 39999999996"),
    "powers": ("{% set a = 9 ** 60 %}" + "{% set a = a ** 60 %}" * 6, "a value has the size"),
    "text that doubles": (
        "{% set n = namespace(s='x') %}{% for a in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
        "the size 33554432",
    ),
    "one text many times": ("{{ (['a' * 100000] * 60000) | join }}", "a value has the size"),
    "a list that doubles": (
        "{% set n = namespace(s=['x' * 9999]) %}{% for a in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
        "a value has the size",
    ),
    "sums": ("{% set a = 'x' * 9999999 %}{{ a" + " + a" * 5 + " }}", "a value has the size"),
    "texts next to each other": (
        "{% set a = 'x' * 9999999 %}{{ a" + " ~ a" * 5 + " }}",
        "a value has the size",
    ),
    "joined with much": ("{{ range(99999) | join('x' * 99999) }}", "a value has the size"),
    "joined by a method": ("{{ ('x' * 99999).join('y' * 99999) }}", "a value has the size"),
    "replaced by much": ("{{ ('x' * 99999) | replace('x', 'y' * 99999) }}", "a value has the size"),
    "replaced by a method": (
        "{{ ('x' * 99999).replace('x', 'y' * 99999) }}",
        "a value has the size",
    ),
    "padded": ("{{ 'x'.ljust(9999999999) }}", "it pads"),
    "a wide format": ("{{ '%9999999999d' % 1 }}", "a width of four digits"),
    "a width as a value": ("{{ '%*d' % (9999999999, 1) }}", "a width of four digits"),
    "a format of a text": ("{{ '{:>9999999999}'.format(1) }}", "a width of four digits"),
    "a format with a width as a value": (
        "{{ '{:>{}}'.format(1, 9999999999) }}",
        "a width of four digits",
    ),
    "a field many times": ("{{ ('{0}' * 5000).format('x' * 9999999) }}", "a value has the size"),
    "a named field many times": (
        "{{ ('%(a)s' * 5000) | format(a='x' * 9999999) }}",
        "a value has the size",
    ),
    "replaced without a count": (
        "{{ ('x' * 99999).replace('x', 'y' * 99999, -1) }}",
        "a value has the size",
    ),
    "a list of what is made one by one": (
        "{{ range(9999, 99999) | map('string') | map('join', 'x' * 99999) | list }}",
        "a value has the size",
    ),
    "namespaces in namespaces": (
        "{% set n = namespace(a='x') %}" + "{% set n = namespace(a=n, b=n) %}" * 60 + "{{ n }}",
        "a value has the size",
    ),
    "lists that are compared": (
        "{% macro f(a, b, n) %}{{ f([a, a], [b, b], n - 1) if n else a == b }}{% endmacro %}{{ f(1, 1, 60) }}",
        "a value has the size",
    ),
    "a wide indent": ("{{ [[1] * 9999] | tojson(indent=99999999) }}", "the indent is"),
    "many variables": (
        "".join(f"{{% set a{n} = 'x' * 9999999 %}}" for n in range(40)),
        "bytes of large values",
    ),
    "many parts of one text": (
        "{% set a = 'x' * 9999999 %}{{ ["
        + ", ".join(f"a[{n}:]" for n in range(40))
        + "] | length }}",
        "bytes of large values",
    ),
    "many texts by filters": (
        "{% set a = 'x' * 9999999 %}{{ [" + ", ".join(["a | upper"] * 40) + "] | length }}",
        "bytes of large values",
    ),
    "many texts by methods": (
        "{% set a = 'x' * 9999999 %}{{ [" + ", ".join(["a.upper()"] * 40) + "] | length }}",
        "bytes of large values",
    ),
    "wide characters": (
        "{{ [" + ", ".join(["'\U0001f600' * 4999999"] * 20) + "] | length }}",
        "bytes of large values",
    ),
    "lists as text": (
        "{% set a = ['x' * 9999] * 99 %}{{ ([a] * 999) | string }}",
        "a value has the size",
    ),
}


@pytest.mark.parametrize("name", HARM)
def test_what_a_template_takes_is_bounded(folder: Path, name: str) -> None:
    body, sentence = HARM[name]
    (folder / "chat_template.jinja").write_text(template(body))
    renderer = Renderer.from_folder(folder)
    assert renderer.decode(renderer.render([user("a")]), skip_special_tokens=False) == (
        "user:a<|im_end|>"
    )
    with pytest.raises(InputError, match=sentence):
        renderer.render([user("harm")])


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (ENDLESS, "2 s of processor time"),
        ("{% for a in [1] %}" * 30 + "{% endfor %}" * 30, "too many statically nested blocks"),
        ("{{ " + "(" * 50_000, "chat template"),
        ("x" * 70_000, "given 70000 characters, expected at most 65536"),
        ("{{ 'x'|center(9999999999999) }}", "chat template"),
    ],
)
def test_unusable_template_is_refused(folder: Path, source: str, sentence: str) -> None:
    (folder / "chat_template.jinja").write_text(source)
    with pytest.raises(WeightsError, match=sentence):
        Renderer.from_folder(folder)


def test_a_template_of_many_words_still_renders(folder: Path) -> None:
    """Loops with conditions, in macros and over thousands of messages; values joined, repeated and kept."""
    (folder / "chat_template.jinja").write_text(
        "{% macro show(m) %}{{ m.role ~ ':' }}{% for w in m.content.split() if w != 'not' %}"
        "{{ w }}{% if not loop.last %}{{ ' ' * (2 - 1) }}{% endif %}{% endfor %}{% endmacro %}"
        "{% set ns = namespace(count=0) %}{% for m in messages %}{% set ns.count = ns.count + 1 %}"
        "{{ show(m) }}{{ '<|im_end|>' }}{{ loop.index if loop.index == loop.length > 9 else '' }}{% endfor %}"
        "{% if ns.count > 9 %}{{ ns.count ** 2 }}{% endif %}"
    )
    renderer = Renderer.from_folder(folder)
    ids = renderer.render([user("a not b")] * 3000)
    text = renderer.decode(ids, skip_special_tokens=False)
    assert text == "user:a b<|im_end|>" * 3000 + "30009000000"


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "tokenizer_config.json", "config.json", "chat_template.jinja"]
)
def test_a_file_that_is_no_regular_one_is_not_opened(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(WeightsError, match=f"{name}: expected a regular file"):
        Renderer.from_folder(folder)


def test_a_file_of_many_gigabytes_is_not_read(folder: Path) -> None:
    with (folder / "tokenizer.json").open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(WeightsError, match=r"tokenizer.json: expected a regular file of at most"):
        Renderer.from_folder(folder)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "config.json", "generation_config.json"])
def test_a_config_that_is_nested_without_end_is_refused(folder: Path, name: str) -> None:
    (folder / name).write_text('{"a":' + DEEP)
    with pytest.raises(WeightsError, match=f"{name}: cannot be read: recursion limit exceeded"):
        Renderer.from_folder(folder)


def test_a_tokenizer_that_panics_fails_on_its_text_only(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    split = pre_tokenizers.Split(Regex("(a+)+b|."), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, tokenizer.pre_tokenizer])
    tokenizer.save(str(folder / "tokenizer.json"))
    renderer = Renderer.from_folder(folder)
    with pytest.raises(InputError, match="the tokenizer fails on the text"):
        renderer.render([user("a" * 60 + "c")])
    assert renderer.render([user("go")])


# ---- weights ----


def safetensors(path: Path, header: bytes, data: bytes = b"") -> None:
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)


def test_a_pipe_in_the_place_of_weights_is_not_opened(folder: Path) -> None:
    os.mkfifo(folder / "model.safetensors")
    for read in (read_folder, read_weights, model_digest):
        with pytest.raises(WeightsError, match=r"model.safetensors: .*no regular file"):
            read(folder)


def test_headers_and_indexes_that_are_nested_without_end_are_refused(folder: Path) -> None:
    safetensors(folder / "model.safetensors", b'{"a":' + DEEP.encode())
    with pytest.raises(WeightsError, match="header cannot be read: recursion limit"):
        read_folder(folder)
    (folder / "model.safetensors.index.json").write_text('{"weight_map":' + DEEP)
    with pytest.raises(WeightsError, match=r"index.json: cannot be read: recursion limit"):
        read_folder(folder)
    (folder / "config.json").write_text('{"a":' + DEEP)
    with pytest.raises(WeightsError, match=r"config.json: cannot be read: recursion limit"):
        read_weights(folder)
    (folder / "manifest.json").write_text('{"a":' + DEEP)
    with pytest.raises(WeightsError, match=r"manifest.json cannot be read: recursion limit"):
        load_manifest(folder)


def test_an_index_names_files_of_its_folder_only(folder: Path, tmp_path: Path) -> None:
    safetensors(tmp_path / "other.safetensors", b"{}")
    index = {"weight_map": {"a": "../other.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(WeightsError, match=r"\.\./other.safetensors is missing"):
        read_folder(folder)
    shutil.copyfile(tmp_path / "other.safetensors", folder / "model.safetensors")
    index["weight_map"]["a"] = "model.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert read_folder(folder) == {}


def test_a_config_of_more_layers_or_weights_than_the_folder_holds_is_refused(folder: Path) -> None:
    demand_layers(folder, {"num_hidden_layers": 12, "max_window_layers": 28}, 12)
    demand_numbers(folder, 2_000_000, 1_000_000)
    for config in ({"num_hidden_layers": 10**6}, {"text_config": {"n_layer": 10**6}}):
        with pytest.raises(WeightsError, match=r"config.json: n\w+ is 1000000, but .* 12 tensors"):
            demand_layers(folder, config, 12)
    with pytest.raises(WeightsError, match=r"describes 20000000000 weights, .* holds 1000000"):
        demand_numbers(folder, 20_000_000_000, 1_000_000)
