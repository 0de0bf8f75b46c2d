"""Cost of a training step: seconds by phase, floating-point operations, and model-FLOP utilisation.

Model FLOPs of a forward pass over C computed cells, P (token, token it sees) pairs and N scored tokens, as in PaLM
(Chowdhery et al., 2022, appendix B) and Kaplan et al. (2020), with attention counted by the pairs that causal masks leave:

    forward = 2 * W * C  +  4 * layers * heads * head_dim * P  +  2 * V * d * N

W are the weights of the blocks' matrices, V * d those of the output layer; vision towers are left out. The backward pass
costs twice as much, or the same again where only an adapter is trained. Recomputation that saves memory does not count. Model-FLOP utilisation is model FLOPs a second over the machine's rate: that of the GPU's data sheet
in bfloat16 without sparsity, and on a CPU the measured rate of a large float32 matrix product with the same threads.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from services.trainer.learner.model.token_batches import TokenBatch
from triforge.algorithms.dealing import Price
from triforge.planning.cards import SPEEDS, sheet_of

_SIZE, _TRIES = 768, 3


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model that the formula needs."""

    blocks: int  # weights of all matrices but embeddings and output layer
    head: int  # weights of the output layer
    attention: int  # layers * heads * head_dim
    backward: float  # cost of the way back over that of the forward pass

    @staticmethod
    def of(model: Any) -> Shape:
        """Read off a transformers model, before it is sharded."""
        config = model.config.get_text_config()
        head: nn.Module | None = model.get_output_embeddings()
        reader: nn.Module = model.get_decoder()
        layers = [m for m in reader.modules() if isinstance(m, nn.Linear) and m is not head]
        heads = getattr(config, "num_attention_heads", 0)
        hidden = getattr(config, "hidden_size", 0)
        width = getattr(config, "head_dim", None) or hidden // max(1, heads)
        frozen = any(not p.requires_grad for p in model.parameters())
        return Shape(
            blocks=sum(layer.weight.numel() for layer in layers),
            head=config.vocab_size * hidden,
            attention=getattr(config, "num_hidden_layers", 0) * heads * width,
            backward=1.0 if frozen else 2.0,
        )

    @property
    def price(self) -> Price:
        """The same for each cell, for `triforge.algorithms.dealing`."""
        if not self.blocks:  # layers of a kind that is not counted
            return Price()
        return Price(pair=2.0 * self.attention / self.blocks, scored=self.head / self.blocks)

    def forward_flops(self, batch: TokenBatch) -> float:
        """Return the FLOPs of one forward pass."""
        cells = 2.0 * self.blocks * batch.computed
        return cells + 4.0 * self.attention * batch.pairs + 2.0 * self.head * len(batch.targets)


@dataclass(slots=True)
class StepCost:
    """Sums over a step in this process."""

    shape: Shape
    device: torch.device
    tokens: int = 0  # of all rows, each as often as it was passed through
    computed: int = 0  # cells that were computed for them
    flops: float = 0.0  # of the model, forwards and backwards
    seconds: dict[str, float] = field(default_factory=dict)  # by phase

    def count(self, batch: TokenBatch, *, trained: bool = True) -> None:
        """Note a forward pass, with its way back if it was trained on."""
        self.flops += self.shape.forward_flops(batch) * (1.0 + self.shape.backward * trained)
        if trained:
            self.tokens += batch.tokens
            self.computed += batch.computed

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time what is done inside."""
        started = time.monotonic()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - started

    def metrics(self, seconds: float, total: Callable[[float], float]) -> dict[str, float]:
        """Return the figures of a step that took `seconds`; `total` sums a number over all ranks."""
        tokens, computed, flops, world = map(
            total, (float(self.tokens), float(self.computed), self.flops, 1.0)
        )
        peak = peak_flops(self.device, torch.get_num_threads())
        found = {
            "input_tokens": tokens,
            "computed_tokens": computed,
            "tokens_per_s": tokens / seconds,
            "seconds": seconds,
            "model_tflops": flops / 1e12,
            **{f"seconds_{name}": value for name, value in self.seconds.items()},
            "seconds_other": max(0.0, seconds - sum(self.seconds.values())),
        }
        if peak:
            found["mfu"] = flops / seconds / world / peak
        return found


@functools.cache
def peak_flops(device: torch.device, threads: int) -> float:  # noqa: ARG001 (part of the key)
    """Return a device's peak FLOPs a second; 0 for a GPU that is not in the table."""
    if device.type == "cuda":
        speed = SPEEDS.get(sheet_of(torch.cuda.get_device_name(device)))
        return speed.flops if speed else 0.0
    a, b = torch.ones(_SIZE, _SIZE), torch.ones(_SIZE, _SIZE)
    best = float("inf")
    for _ in range(_TRIES):
        started = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - started)
    return 2.0 * _SIZE**3 / best


def histogram(name: str, values: Any, edges: tuple[float, ...]) -> dict[str, float]:
    """Shares of the values below the first edge, from edge to edge, and from the last one on.

    They are called `<name>_below_<edge>` and, the last one, `<name>_from_<edge>`; each value counts once.
    """
    total = len(values)
    if not total:
        return {}
    bounds = [float("-inf"), *edges, float("inf")]
    found = {}
    for low, high in itertools.pairwise(bounds):
        label = f"{name}_below_{high:g}" if high != float("inf") else f"{name}_from_{low:g}"
        found[label] = float(((values >= low) & (values < high)).sum()) / total
    return found
