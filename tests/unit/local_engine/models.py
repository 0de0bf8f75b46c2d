"""Tiny random model folders, and what a plain forward pass says about them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from services.local_engine.detokenize import TextCodec
from services.local_engine.engine import Engine
from services.local_engine.model import load_model
from services.local_engine.request import Prompt, SamplingParams
from services.local_engine.scheduler import Limits, Scheduler
from services.local_engine.sequence import Sequence

VOCAB = 100
PAD, BEGIN, END = 0, 1, 2
JSON_WORDS = ["{", "}", ":", ",", '"a"', '"b"', "1", "2", "yes", "no", "yesterday"]
WORDS = ["<pad>", "<s>", "</s>", *JSON_WORDS, *(f"w{i}" for i in range(VOCAB - 3 - 11))]
TEMPLATE = "{% for m in messages %}{{ m.role }} {{ m.content }} </s> {% endfor %}assistant"


def word_tokenizer() -> Tokenizer:
    made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(["<pad>", "<s>", "</s>"])
    return made


def byte_tokenizer() -> Tokenizer:
    """259 tokens: three special ones and every byte."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<pad>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=259, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    made.train_from_iterator([], trainer)
    return made


def sentencepiece() -> Tokenizer:
    """Pieces with a leading space, and bytes for what has none, as Llama 2 has them."""
    bytes_of = {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, **bytes_of}
    for piece in ("▁", *"abSTOPw123", "é", "世", "▁a", "▁w", "ST", "▁S", "OP"):
        vocabulary[piece] = len(vocabulary)
    merges = [("▁", "a"), ("▁", "w"), ("S", "T"), ("▁", "S"), ("O", "P")]
    made = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>"))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    return made


def build_folder(
    folder: Path, *, seed: int = 0, tokenizer: Tokenizer | None = None, **config: Any
) -> Path:
    """A random Llama whose distributions are neither flat nor one-hot."""
    words = tokenizer is None
    made = word_tokenizer() if tokenizer is None else tokenizer
    sizes: dict[str, Any] = {
        "vocab_size": made.get_vocab_size(), "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.25,
        "bos_token_id": BEGIN, "eos_token_id": END, "pad_token_id": PAD, "tie_word_embeddings": False,
    }  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        LlamaForCausalLM(LlamaConfig(**(sizes | config))).save_pretrained(folder)
    made.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "</s>", "bos_token": "<s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if words:
        (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def edit_weights(source: Path, target: Path, change: Any) -> Path:
    """A copy of a model folder whose tensors went through `change(dict)`."""
    target.mkdir()
    for file in source.iterdir():
        if file.name != "model.safetensors":
            (target / file.name).write_bytes(file.read_bytes())
    tensors = load_file(source / "model.safetensors")
    change(tensors)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


def plain_model(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@torch.inference_mode()
def plain_logprobs(
    model: Any, prompt: list[int], output: list[int], temperature: float = 1.0
) -> list[float]:
    """Log-probability of each output token, by one forward pass over the whole sequence."""
    logits = model(torch.tensor([prompt + output])).logits[0] / temperature
    scores = logits.log_softmax(-1)
    return [scores[len(prompt) - 1 + i, token].item() for i, token in enumerate(output)]


def random_prompts(
    count: int, *, seed: int = 0, shared: int = 0, longest: int = 40
) -> list[list[int]]:
    """Prompts of different lengths that begin with the same `shared` tokens."""
    r = random.Random(seed)
    head = [r.randrange(3, VOCAB) for _ in range(shared)]
    return [
        head + [r.randrange(3, VOCAB) for _ in range(r.randrange(1, longest))] for _ in range(count)
    ]


def new_scheduler(
    folder: Path, limits: Limits | None = None, *, own_llama: bool = True
) -> Scheduler:
    model, _ = load_model(folder, own_llama=own_llama)
    return Scheduler(model, limits or Limits(), "0")


def new_engine(folder: Path, *, limits: Limits | None = None, version: str = "0") -> Engine:
    """An engine that is not started."""
    model, config = load_model(folder)
    return Engine(model, config, TextCodec(folder), folder, limits=limits, version=version, seed=0)


def new_sequence(ids: list[int], seed: int = 0, **params: Any) -> Sequence:
    """A sequence that ends at the end token."""
    wanted = SamplingParams(**params)
    prompt = Prompt(ids, wanted, f"r{seed}", return_logprob=True)
    ends = frozenset() if wanted.ignore_eos else frozenset({END})
    return Sequence(prompt, prompt.rid, seed, wanted.max_new_tokens or 0, ends)


def run_all(scheduler: Scheduler, sequences: list[Sequence]) -> list[Sequence]:
    """Submit and step until idle; returns the sequences in their order."""
    scheduler.submit(sequences)
    while not scheduler.idle:
        scheduler.step()
    return sequences
