"""A model folder with random weights, for measuring speed: how long a step takes does not depend on what weights say.

By default it has the shape of Qwen2.5-0.5B: 24 layers of width 896, 14 heads over 2, tied embeddings of 151,936 tokens, 494
million weights, 2 GB in float32. There is no tokenizer in it; rows of ids are all that a learner needs.

Run: python -m bench.random_model FOLDER [--layers 24] [--hidden 896] [--heads 14] [--groups 2] [--inner 4864] [--vocabulary 151936]
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, Qwen2Config


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a Qwen2: `groups` are key and value heads, `inner` the width between the two products of a block."""

    layers: int = 24
    hidden: int = 896
    heads: int = 14
    groups: int = 2
    inner: int = 4864
    vocabulary: int = 151_936


def random_model(folder: Path, shape: Shape, *, seed: int = 1) -> int:
    """Write the folder; returns the number of weights."""
    config = Qwen2Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.groups,
        max_position_embeddings=131_072,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, trust_remote_code=False
        )
    model.save_pretrained(folder)
    return sum(p.numel() for p in model.parameters())


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    for name, value in vars(Shape()).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    args = vars(parser.parse_args())
    folder = args.pop("folder")
    print(f"{folder}: {random_model(folder, Shape(**args)):,} weights")


if __name__ == "__main__":
    main()
