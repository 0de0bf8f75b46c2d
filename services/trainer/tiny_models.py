"""Tiny models for first runs, tests and demonstrations: a word-level tokenizer and a Llama of about 0.1 M parameters.

Every word of a closed vocabulary is one token, so an observation costs a few dozen tokens and one CPU core trains tens
of thousands of tokens a second. The folder is an ordinary model folder: any engine that loads Llama can serve it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from services.trainer.weight_folders import atomic_folder
from services.trainer.weight_tensors import TENSORS, save_tensors
from triforge.errors import InputError
from triforge.store.manifests import write_manifest

PAD, UNKNOWN, END = "<pad>", "<unk>", "<end>"
ROLE_TOKENS = ("<system>", "<user>", "<assistant>")
SPECIAL = (PAD, UNKNOWN, END, *ROLE_TOKENS)

# Only what the model says is closed by <end>, its end-of-sequence token; the next role token closes the rest.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if not loop.first %} {% endif -%}"
    "<{{ message['role'] }}> {{ message['content'] }}"
    "{%- if message['role'] == 'assistant' %} <end>{% endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt %} <assistant>{% endif -%}"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TinyShape:
    """Sizes of a tiny model; the defaults make about 0.1 M parameters with a hundred words."""

    hidden: int = 64
    layers: int = 2
    heads: int = 4
    max_positions: int = 1024
    init_std: float = 0.1


def words_of(texts: Iterable[str]) -> list[str]:
    """The distinct words of texts, sorted, without special tokens."""
    found = {word for text in texts for word in text.split()}
    return sorted(found - set(SPECIAL))


def build_tiny_model(
    folder: Path,
    words: Iterable[str],
    *,
    shape: TinyShape | None = None,
    seed: int = 0,
    replace: bool = False,
) -> Path:
    """Write a fresh tiny model with random weights.

    Args:
        folder: where; complete or absent, never half written.
        words: the vocabulary beside the special tokens; the order fixes the ids, repetitions are ignored.
        shape: sizes.
        seed: of the weights; same seed and words, same file.
        replace: overwrite a folder that exists.

    Returns:
        The folder.

    Raises:
        InputError: a word is empty, contains white space or is a special token; or the sizes do not fit.
        WeightsError: the folder exists.
        StorageError: it cannot be written.
    """
    shape = shape or TinyShape()
    if shape.hidden % (2 * shape.heads):
        raise InputError(
            f"hidden: given {shape.hidden} with {shape.heads} heads, expected a multiple of {2 * shape.heads}"
        )
    tokenizer = word_tokenizer(words, shape.max_positions)
    model = _model(shape, len(tokenizer), seed)
    with atomic_folder(folder, replace=replace) as aside:
        tokenizer.save_pretrained(aside)
        plain_class(aside / "tokenizer_config.json")
        model.config.save_pretrained(aside)
        model.generation_config.save_pretrained(aside)
        tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
        save_tensors(tensors, aside / TENSORS)
        write_manifest(aside, {"kind": "tiny", "seed": seed})
    return folder


def plain_class(path: Path) -> None:
    """Name the tokenizer class that every version of transformers knows."""
    config = json.loads(path.read_text())
    config.pop("backend", None)
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def word_tokenizer(
    words: Iterable[str],
    max_positions: int,
    *,
    more: tuple[str, ...] = (),
    template: str = CHAT_TEMPLATE,
) -> PreTrainedTokenizerFast:
    """A tokenizer for which each of `words` is one token; the special tokens, and `more` of them, come first.

    Raises:
        InputError: a word is empty, contains white space or is a special token.
    """
    special = (*SPECIAL, *more)
    wanted = list(dict.fromkeys(words))
    bad = [word for word in wanted if word in special or word.split() != [word]]
    if bad or not wanted:
        raise InputError(
            f"words: given {bad[:5] or 'none'}, expected words without white space that are not one of {special}"
        )
    ids = {word: number for number, word in enumerate((*special, *wanted))}
    backend = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token=UNKNOWN,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[*ROLE_TOKENS, *more],
        clean_up_tokenization_spaces=False,
        model_max_length=max_positions,
    )
    tokenizer.chat_template = template
    return tokenizer


def _model(shape: TinyShape, vocabulary: int, seed: int) -> LlamaForCausalLM:
    pad, end = SPECIAL.index(PAD), SPECIAL.index(END)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=5 * shape.hidden // 2,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=shape.max_positions,
        initializer_range=shape.init_std,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=pad,
        architectures=["LlamaForCausalLM"],
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=pad)
    return model
