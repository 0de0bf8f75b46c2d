"""Bytes of a learner's rank and of an engine's card, by what they are for.

A learner keeps weights, gradients and AdamW's moments in float32: 16 bytes a trained weight, 4 a frozen one, shared by its ranks. A forward
pass keeps for the way back, in bytes a token and layer of width d, with q and k the widths of queries and of keys, f that of the feed-forward
layer:

    float32     4 (6 d + 2 q + 2 k + 4 f)    of both norms input, normalised and output; queries, keys, values, attention; gate, its
                                             activation, up, product. 4 d where only an adapter is trained. Qwen3's norms add 2 q + 2 k
    bfloat16    26 d + 4 q + 4 k + 8 f       the residual stream stays float32, each matrix has a bfloat16 copy of its input and of itself

`activation_checkpointing` keeps the input of each layer, 4 d, and has the rest for one layer at a time. `tests/unit/planning/test_memory.py`
measures that, and compares published figures.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from triforge.config import LearnerSection
from triforge.planning.shapes import ModelShape

GIB: Final = 2**30
FRACTION: Final = 0.85  # of a card that an engine may fill with weights and cache; kernels and graphs need the rest
USABLE: Final = (
    0.92  # of a card that a learner's tensors may fill; CUDA's context and fragments need the rest
)
LOGITS: Final = {
    True: 1 << 27,
    False: 1 << 24,
}  # that a learner holds at once, on a GPU and on a CPU
_WEIGHT, _GRADIENT, _MOMENTS, _HALF = 4, 4, 8, 2  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    @property
    def total(self) -> float:
        """All of it."""
        return float(sum(getattr(self, part.name) for part in fields(self)))


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerMemory(_Parts):
    """Bytes of one rank at its peak. `working` are logits or the layer that is computed again, and what several ranks have whole."""

    weights: float
    gradients: float
    optimiser: float
    reference: float
    activations: float
    working: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMemory(_Parts):
    """Bytes of an engine on one card."""

    weights: float
    kv_cache: float


def trained_weights(shape: ModelShape, section: LearnerSection) -> int:
    """Return how many numbers are trained: all weights, or the adapter's."""
    if not section.lora_rank:
        return shape.weights
    sizes = [
        a + b for n, (a, b) in shape.linear.items() if n in (section.lora_targets or shape.linear)
    ]
    return shape.layers * section.lora_rank * sum(sizes)


def layer_activations(shape: ModelShape, *, half: bool, frozen: bool) -> int:
    """Return the bytes a token that one layer keeps for the way back; a frozen norm does not keep what it normalised."""
    d, heads, f, trained = shape.hidden, shape.queries + shape.keys, shape.inner, not frozen
    if half:
        return (18 + 8 * trained) * d + (4 + shape.normed_heads * (4 + 2 * trained)) * heads + 8 * f
    return 4 * ((4 + 2 * trained) * d + (2 + shape.normed_heads * (1 + trained)) * heads + 4 * f)


def learner_memory(
    shape: ModelShape,
    section: LearnerSection,
    *,
    ranks: int = 1,
    gpu: bool = True,
    reference: bool = False,
    critic: bool = False,
) -> LearnerMemory:
    """Return the bytes of each rank; more than one on GPUs holds shares (FSDP2), on a CPU all of it.

    Args:
        reference: the KL anchor is the initial model; an adapter has it in its own base.
        critic: a value model of the same size is trained as well.
    """
    half = section.precision == "bfloat16" or (section.precision == "auto" and gpu)
    shares = ranks if gpu else 1
    trained, tokens = trained_weights(shape, section), section.token_budget
    frozen = shape.weights if section.lora_rank else 0
    models = 1 + critic
    layer = layer_activations(shape, half=half, frozen=bool(frozen)) * tokens
    copies = _HALF * half * shape.block
    if section.activation_checkpointing:
        kept, again = 4 * shape.hidden * tokens, layer + copies
    else:
        kept, again = layer + copies, 0
    # The gradient that goes through the widest matrix; and logits with their softmax or gradient.
    again += (2 if half else 4) * shape.inner * tokens
    logits = (8 + 2 * half) * min(LOGITS[gpu], tokens * shape.vocabulary)
    whole = 0.0 if frozen else _GRADIENT * shape.embedding
    if shares > 1:  # two layers and the ends are whole, with their gradients if they are trained
        ends = shape.embedding * (2 - shape.tied)
        whole = _WEIGHT * (2 * shape.block + ends) + _GRADIENT * (not frozen) * (shape.block + ends)
    return LearnerMemory(
        weights=_WEIGHT * (frozen + models * trained) / shares,
        gradients=_GRADIENT * models * trained / shares,
        optimiser=_MOMENTS * models * trained / shares,
        reference=_WEIGHT * shape.weights * (reference and not frozen) / shares,
        activations=shape.layers * kept + 3 * 4 * shape.hidden * tokens,
        working=max(logits, again) + whole,
    )


def cache_per_token(shape: ModelShape, tensor_parallel: int) -> float:
    """Return the bytes of keys and values of a token on one card, in bfloat16."""
    keys = max(shape.key_heads / tensor_parallel, 1) * shape.head_dim
    return _HALF * 2 * shape.layers * keys


def engine_weights(shape: ModelShape, tensor_parallel: int) -> float:
    """Return the bytes of an engine's weights on one card, in bfloat16."""
    return _HALF * shape.weights / tensor_parallel


def disk(shape: ModelShape, section: LearnerSection) -> tuple[float, float]:
    """Return the bytes of one checkpoint and of one weight version; both are kept `run.keep_checkpoints` times."""
    trained = trained_weights(shape, section)
    rounded = section.publish_dtype == "bfloat16"
    return (_MOMENTS + _WEIGHT * rounded) * trained, (_HALF if rounded else _WEIGHT) * trained
