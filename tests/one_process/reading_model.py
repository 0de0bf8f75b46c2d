"""A model with random weights that can read and write any text."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
PAD, END = "<|pad|>", "<|end|>"
TEMPLATE = (
    "{%- for message in messages -%}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{%- endfor -%}"
    "{%- if add_generation_prompt %}<|assistant|>{% endif -%}"
)
TOKENS = 1500  # of the vocabulary: about four characters of English a token
POSITIONS = 8192
LICENSE = Path(__file__).parents[2] / "LICENSE"  # English that does not change


def build_reading_model(folder: Path, *, seed: int = 3) -> Path:
    """Build a Llama of about 0.2 M parameters over byte pairs of English; every byte is a token, too."""
    tokenizer = _byte_pairs([LICENSE.read_text(encoding="utf-8")])
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=48, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=POSITIONS, initializer_range=0.1,
        bos_token_id=None, eos_token_id=tokenizer.token_to_id(END), pad_token_id=tokenizer.token_to_id(PAD),
        tie_word_embeddings=False, dtype="float32", architectures=["LlamaForCausalLM"],
    )  # fmt: skip
    folder.mkdir(parents=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tensors = LlamaForCausalLM(config).state_dict()
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    config.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": PAD}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({**settings, "additional_special_tokens": list(ROLES)})
    )
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def _byte_pairs(texts: Iterable[str]) -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[PAD, END, *ROLES],
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    return made
