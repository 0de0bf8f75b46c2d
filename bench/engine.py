"""What the local engine gains: `python -m bench.engine`.

Sixteen requests at once whose prompts and outputs differ in length by 4x, against one static batch of transformers'
`generate` (left-padded, run until the longest output is done). Only tokens that were asked for count. Both sides are
greedy and run in this process, one after the other, so the ratio is what to read, not the seconds. Weights that change
under load are measured by `bench.reload`.
"""

from __future__ import annotations

import argparse
import random
import time
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from services.local_engine.llama import LlamaModel, LlamaShape
from services.local_engine.request import Prompt, SamplingParams
from services.local_engine.scheduler import Limits, Scheduler
from services.local_engine.sequence import Sequence

SHAPES: dict[str, dict[str, Any]] = {
    "smollm2-135m": {
        "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True,
    },
    "tiny-0.1m": {
        "vocab_size": 128, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "tie_word_embeddings": False,
    },
}  # fmt: skip
REQUESTS = 16
# (prompt tokens, new tokens): both differ by 4x, in every combination.
LENGTHS = [(prompt, new) for prompt in (24, 48, 72, 96) for new in (8, 16, 24, 32)]


def config_of(shape: str) -> LlamaConfig:
    return LlamaConfig(
        **SHAPES[shape], max_position_embeddings=2048, eos_token_id=None, pad_token_id=0
    )


def prompts(vocab: int, *, shared: bool) -> list[list[int]]:
    """16 prompts; with `shared`, the requests of each group of four begin with the same 3/4 of their prompt."""
    r = random.Random(0)
    draw = lambda n: [r.randrange(3, vocab) for _ in range(n)]  # noqa: E731
    found = []
    for group in range(4):
        heads = draw(LENGTHS[4 * group][0] * 3 // 4)
        for length, _ in LENGTHS[4 * group : 4 * group + 4]:
            head = heads if shared else draw(len(heads))
            found.append(head + draw(length - len(head)))
    return found


def run_generate(model: Any, rows: list[list[int]]) -> tuple[float, list[list[int]]]:
    """Seconds and outputs of one static batch."""
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    longest = max(new for _, new in LENGTHS)
    start = time.perf_counter()
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=longest)
    seconds = time.perf_counter() - start
    kept = [row[width : width + new].tolist() for row, (_, new) in zip(out, LENGTHS, strict=True)]
    return seconds, kept


def run_engine(model: LlamaModel, rows: list[list[int]]) -> tuple[float, list[list[int]]]:
    """Seconds and outputs of the same requests through the scheduler, starting with an empty cache."""
    scheduler = Scheduler(model, Limits(max_running=REQUESTS, max_prefill_tokens=4096), "0")
    sequences = []
    for i, (row, (_, new)) in enumerate(zip(rows, LENGTHS, strict=True)):
        prompt = Prompt(row, SamplingParams(max_new_tokens=new, temperature=0.0), str(i))
        sequences.append(Sequence(prompt, str(i), i, new, frozenset()))
    start = time.perf_counter()
    scheduler.submit(sequences)
    while not scheduler.idle:
        scheduler.step()
    return time.perf_counter() - start, [seq.output for seq in sequences]


def throughput(shape: str, repeats: int) -> None:
    config = config_of(shape)
    torch.manual_seed(0)
    plain = LlamaForCausalLM(config).eval()
    described = LlamaShape.from_config(config.to_dict())
    assert described is not None
    own = LlamaModel(described)
    own.apply({n: t for n, t in plain.state_dict().items() if n in own.shapes()})
    tokens = sum(new for _, new in LENGTHS)
    for shared in (False, True):
        rows = prompts(config.vocab_size, shared=shared)
        static = dynamic = float("inf")
        # best of several, alternating, because other work shares the cores
        for _ in range(repeats):
            seconds, expected = run_generate(plain, rows)
            static = min(static, seconds)
            seconds, found = run_engine(own, rows)
            dynamic = min(dynamic, seconds)
        same = sum(a == b for a, b in zip(expected, found, strict=True))
        kind = "shared prefixes" if shared else "no shared prefix"
        print(
            f"{shape}, {kind}: generate {tokens / static:.0f} tok/s, engine {tokens / dynamic:.0f} tok/s, "
            f"ratio {static / dynamic:.2f}, equal outputs {same}/{REQUESTS}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=[*SHAPES, "all"], default="all")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for shape in SHAPES if options.shape == "all" else [options.shape]:
        throughput(shape, options.repeats)


if __name__ == "__main__":
    main()
