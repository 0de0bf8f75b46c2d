"""Tokenizer folders for tests: one in the style of chat models, one with a vocabulary of whole words.

They hold no weights; `config.json` is there because a model folder has one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

CHATML_TEMPLATE = (
    "{% if messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are of help.<|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# As templates of models that call tools: tools and calls as JSON, results as turns of their own.
TOOLS_TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system\nTools:' }}{% for tool in tools %}{{ ' ' + (tool | tojson) }}{% endfor %}"
    "{{ '\n' }}{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}{{ '<|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}{% if not (tools and loop.first and message.role == 'system') %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content }}"
    "{% for call in message.tool_calls or [] %}"
    "{{ '<tool_call>\n' + ({'name': call.function.name, 'arguments': call.function.arguments} | tojson) + '\n</tool_call>' }}"
    "{% endfor %}{{ '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
WORDS_TEMPLATE = (
    "{% for m in messages %}"
    "{{ '<user> ' if m.role == 'user' else '<assistant> ' if m.role == 'assistant' else '<system> ' }}"
    "{{ m.content }}{{ ' </s> ' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
_TRAINED_ON = (
    "You are of help. Count to three. The count is one. You see a cup and a table.",
    "user system assistant take the cup and put it on the table",
)


def chatml_folder(folder: Path) -> Path:
    """Write a byte-level BPE tokenizer with `<|im_start|>` (1) and `<|im_end|>` (2), and a template that adds a system turn."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TRAINED_ON, trainer)
    named = {"bos": "<|im_start|>", "eos": "<|im_end|>", "unk": "<|endoftext|>"}
    _write(folder, tokenizer, named, eos_id=2)
    (folder / "chat_template.jinja").write_text(CHATML_TEMPLATE, encoding="utf-8")
    return folder


def words_folder(
    folder: Path, words: Sequence[str], *, markers_are_special: bool = True, turn_ends: bool = True
) -> Path:
    """Write a whole-word tokenizer: `<unk>` 0, `</s>` 1, `<user>` 2, `<assistant>` 3, `<system>` 4, then the words.

    Args:
        markers_are_special: register the markers as special tokens, or leave them ordinary words.
    """
    markers = ["<unk>", "</s>", "<user>", "<assistant>", "<system>"]
    vocabulary = {word: index for index, word in enumerate([*markers, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))  # noqa: S106 - not a secret
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if markers_are_special:
        tokenizer.add_special_tokens([AddedToken(marker, special=True) for marker in markers])
    template = WORDS_TEMPLATE if turn_ends else WORDS_TEMPLATE.replace(" </s> ", " ")
    named = {"eos": "</s>", "unk": "<unk>"}
    _write(folder, tokenizer, named, eos_id=1, chat_template=template)
    return folder


def _write(
    folder: Path, tokenizer: Tokenizer, named: dict[str, str], *, eos_id: int, **config: str
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    files = {
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **{f"{name}_token": token for name, token in named.items()},
            **config,
        },
        "generation_config.json": {"eos_token_id": eos_id},
        "config.json": {
            "model_type": "llama",
            "vocab_size": tokenizer.get_vocab_size(),
            "tie_word_embeddings": True,
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
