"""Tiny models for first runs, tests and demonstrations: a word-level tokenizer and a Llama of about 0.1 M parameters.

Every word of a closed vocabulary is one token, so an observation costs a few dozen tokens and one CPU core trains tens
of thousands of tokens a second. The folder is an ordinary model folder: any engine that loads Llama can serve it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
)

from services.trainer.learner.weights.tensors import TENSORS, save_tensors, write_json
from triforge.errors import InputError
from triforge.store.manifests import write_manifest
from triforge.store.weight_folders import atomic_folder

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

IMAGE, VIDEO, BEGIN_IMAGE, END_IMAGE = (
    "<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>",
)  # fmt: skip
VISION = (BEGIN_IMAGE, END_IMAGE, IMAGE, VIDEO)

VISION_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if not loop.first %} {% endif -%}"
    "<{{ message['role'] }}>"
    "{%- if message['content'] is string %} {{ message['content'] }}"
    "{%- else -%}{%- for part in message['content'] -%}"
    "{%- if part['type'] == 'image' or part['type'] == 'image_url' %} <|vision_start|> <|image_pad|> <|vision_end|>"
    "{%- else %} {{ part['text'] }}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}"
    "{%- if message['role'] == 'assistant' %} <end>{% endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt %} <assistant>{% endif -%}"
)
_PATCH, _MERGE = 14, 2
_TOWER = {"depth": 2, "hidden_size": 32, "num_heads": 2, "intermediate_size": 48}


@dataclass(frozen=True, kw_only=True, slots=True)
class TinyShape:
    """Sizes of a tiny model; the defaults make about 0.1 M parameters with a hundred words."""

    hidden: int = 64
    layers: int = 2
    heads: int = 4
    max_positions: int = 1024
    init_std: float = 0.1

    def check(self, parts: int) -> None:
        """Check that the head size splits into so many equal parts; InputError if not."""
        if self.hidden % (parts * self.heads):
            raise InputError(
                f"hidden: given {self.hidden} with {self.heads} heads, expected a multiple of {parts * self.heads}"
            )

    def config(self, vocabulary: int) -> dict[str, Any]:
        """Return the sizes by the names of transformers."""
        return {
            "vocab_size": vocabulary,
            "hidden_size": self.hidden,
            "intermediate_size": 5 * self.hidden // 2,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads,
            "max_position_embeddings": self.max_positions,
            "initializer_range": self.init_std,
            "bos_token_id": None,
            "eos_token_id": SPECIAL.index(END),
            "pad_token_id": SPECIAL.index(PAD),
        }


def words_of(texts: Iterable[str]) -> list[str]:
    """Return the distinct words of texts, sorted, without special tokens."""
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
        words: the vocabulary in addition to the special tokens; the order fixes the ids, repetitions are ignored.
        seed: of the weights; same seed and words, same file.

    Raises:
        InputError: a word is empty, contains white space or is a special token; or the sizes do not fit.
        WeightsError: the folder exists.
        StorageError: it cannot be written.
    """
    shape = shape or TinyShape()
    shape.check(2)
    tokenizer = word_tokenizer(words, shape.max_positions)
    config = LlamaConfig(
        **shape.config(len(tokenizer)),
        tie_word_embeddings=False,
        architectures=["LlamaForCausalLM"],
        dtype="float32",
    )
    return _write(folder, tokenizer, LlamaForCausalLM, config, seed, {"kind": "tiny"}, replace)


def build_tiny_vision_model(
    folder: Path,
    words: Iterable[str],
    *,
    shape: TinyShape | None = None,
    max_tokens_an_image: int = 16,
    seed: int = 0,
    replace: bool = False,
) -> Path:
    """Write a fresh tiny model that sees: a Qwen2.5-VL with small images. Arguments and errors: see `build_tiny_model`.

    `shape` is of the language model; the vision tower always has two narrow layers. Larger images are scaled down to
    `max_tokens_an_image` tokens of 28 x 28 pixels.
    """
    shape = shape or TinyShape()
    shape.check(8)
    tokenizer = word_tokenizer(words, shape.max_positions, more=VISION, template=VISION_TEMPLATE)
    ids = {token: number for number, token in enumerate((*SPECIAL, *VISION))}
    sixth = shape.hidden // shape.heads // 8  # of a half head, turned by three positions
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2 * sixth, sixth, sixth]}
    config = Qwen2_5_VLConfig(
        text_config={**shape.config(len(tokenizer)), "rope_parameters": rope},
        vision_config={
            **_TOWER,
            "out_hidden_size": shape.hidden,
            "patch_size": _PATCH,
            "spatial_merge_size": _MERGE,
            "window_size": 112,
            "fullatt_block_indexes": [1],
            "initializer_range": shape.init_std,
        },
        image_token_id=ids[IMAGE],
        video_token_id=ids[VIDEO],
        vision_start_token_id=ids[BEGIN_IMAGE],
        vision_end_token_id=ids[END_IMAGE],
        tie_word_embeddings=False,
        architectures=["Qwen2_5_VLForConditionalGeneration"],
        dtype="float32",
    )
    side = _PATCH * _MERGE
    sizes = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": _PATCH,
        "merge_size": _MERGE,
        "temporal_patch_size": 2,
        "min_pixels": side * side,
        "max_pixels": side * side * max_tokens_an_image,
    }
    kind, about = Qwen2_5_VLForConditionalGeneration, {"kind": "tiny_vision"}
    return _write(folder, tokenizer, kind, config, seed, about, replace, sizes)


def _write(
    folder: Path,
    tokenizer: PreTrainedTokenizerFast,
    kind: Any,
    config: Any,
    seed: int,
    about: dict[str, str],
    replace: bool,
    image_sizes: dict[str, Any] | None = None,
) -> Path:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = kind(config)
    end, pad = SPECIAL.index(END), SPECIAL.index(PAD)
    model.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=pad)
    with atomic_folder(folder, replace=replace) as aside:
        tokenizer.save_pretrained(aside)
        plain_class(aside / "tokenizer_config.json")
        if image_sizes:
            write_json(aside / "preprocessor_config.json", image_sizes)
        model.config.save_pretrained(aside)
        model.generation_config.save_pretrained(aside)
        tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
        save_tensors(tensors, aside / TENSORS)
        write_manifest(aside, {**about, "seed": seed})
    return folder


def plain_class(path: Path) -> None:
    """Name the tokenizer class that every version of transformers knows."""
    config = json.loads(path.read_text())
    config.pop("backend", None)
    write_json(path, config | {"tokenizer_class": "PreTrainedTokenizerFast"})


def word_tokenizer(
    words: Iterable[str],
    max_positions: int,
    *,
    more: tuple[str, ...] = (),
    template: str = CHAT_TEMPLATE,
) -> PreTrainedTokenizerFast:
    """Return a tokenizer for which each of `words` is one token; the special tokens, and `more` of them, come first.

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
