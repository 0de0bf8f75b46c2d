"""The learner on the device: what it computes beside the CPU, in half precision, packed, sharded, adapted, resumed.

Bounds are on vectors of all gradients, as |difference| / |reference|.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from bench.gpu.models import SHAPES, Shape, device, emptied, peak_gib, qwen_folder, rows, smaller
from bench.gpu.supervise import SkipCase
from bench.trainer import batch_of
from services.trainer.checkpoint import CheckpointStore
from services.trainer.distributed import Ranks, whole
from services.trainer.learner import Learner
from services.trainer.lora import LoraShape
from services.trainer.model import ScoringModel
from services.trainer.packed_attention import varlen_kernel
from services.trainer.step_cost import StepCost
from services.trainer.token_batches import Sequences
from triforge.store.artifacts import ArtifactStore

_EXACT, _HALF = 1e-4, 0.05
CPU = torch.device("cpu")
# Four rows of two prompts, one of them long, so that packing shares prefixes and pads.
LENGTHS = [(40, 24), (40, 9), (150, 60), (150, 13)]


class Folder:
    """A model folder of a case, and rows for it."""

    def __init__(self, shape: Shape) -> None:
        self._scratch = tempfile.TemporaryDirectory()
        self.root = Path(self._scratch.name)
        self.model = qwen_folder(self.root / "model", shape)
        heads = [[7 + i % 90 for i in range(before)] for before, _ in LENGTHS]
        self.rows = rows(LENGTHS, shape.vocabulary, prefixes=heads)

    def batch(self, **options: Any) -> tuple[Any, Any]:
        """A step of all rows in one forward pass."""
        return batch_of(self.rows, self.model, token_budget=4096, **options)


def _shape(rehearse: bool) -> Shape:
    return SHAPES["tiny"] if rehearse else smaller(SHAPES["0.6B"], 4)


def _gradient(model: ScoringModel, folder: Folder, *, packed: bool) -> tuple[float, torch.Tensor]:
    """Mean log-probability of all rows and its gradient, by one forward pass."""
    batch, given = folder.batch()
    del batch
    ids = [torch.tensor(row.ids).numpy() for row in given]
    scored = [torch.arange(1, len(row)).numpy() for row in ids]
    tokens = Sequences(ids, scored).batch(range(len(ids)), model.device, packed=packed)
    model.module.zero_grad()
    logprobs, _ = model.score(tokens, 1.0)
    logprobs.mean().backward()
    found = [
        p.grad.detach().float().flatten() for p in model.parameters().values() if p.grad is not None
    ]
    return float(logprobs.detach().mean()), torch.cat(found).cpu()


def _off(found: torch.Tensor, reference: torch.Tensor) -> float:
    return float((found - reference).norm() / reference.norm())


def _float32(rehearse: bool) -> dict[str, Any]:
    """Log-probabilities and gradients in float32, beside the CPU's."""
    folder = Folder(_shape(rehearse))
    loss, gradient = _gradient(ScoringModel.load(folder.model, device()), folder, packed=True)
    wanted, reference = _gradient(ScoringModel.load(folder.model, CPU), folder, packed=False)
    off = _off(gradient, reference)
    assert abs(loss - wanted) < _EXACT, f"{loss} on the device, {wanted} on the CPU"
    assert off < 10 * _EXACT, f"the gradient is {off:.3g} off, expected under {10 * _EXACT}"
    return {"logprob": loss, "logprob_off": abs(loss - wanted), "gradient_off": off}


def _bfloat16(rehearse: bool) -> dict[str, Any]:
    """Packed and padded rows in bfloat16 with float32 weights, both beside float32; which kernel packs."""
    folder = Folder(_shape(rehearse))
    model = ScoringModel.load(folder.model, device())
    wanted, reference = _gradient(model, folder, packed=False)
    model.compute(precision="bfloat16")
    assert model.packs, "rows are not packed in bfloat16; the log says why"
    kernel = varlen_kernel()
    if device().type == "cuda":
        assert kernel is not None, (
            "no kernel for variable lengths: neither flash_attn nor PyTorch's"
        )
    found: dict[str, Any] = {"kernel": getattr(kernel, "__module__", "none")}
    for name, packed in (("packed", True), ("padded", False)):
        loss, gradient = _gradient(model, folder, packed=packed)
        found |= {
            f"{name}_logprob_off": abs(loss - wanted),
            f"{name}_gradient_off": _off(gradient, reference),
        }
    assert {p.dtype for p in model.parameters().values()} == {torch.float32}
    for name in ("packed", "padded"):
        assert found[f"{name}_logprob_off"] < _HALF, found
        assert found[f"{name}_gradient_off"] < _HALF, found
    assert found["packed_gradient_off"] < 1e-3 + 2 * found["padded_gradient_off"], found
    return found


def _trained(folder: Folder, ranks: Ranks, steps: int = 1, **options: Any) -> Learner:
    learner = Learner.fresh(folder.model, ranks)
    for _ in range(steps):
        learner.train(*folder.batch(precision="float32", **options))
    return learner


def _fsdp(rehearse: bool) -> dict[str, Any]:
    """A step of one rank whose tensors are sharded by FSDP2, beside one that holds them whole."""
    folder = Folder(_shape(rehearse))
    plain = _trained(folder, Ranks(device())).model.parameters()
    kind = device().type
    with tempfile.NamedTemporaryFile() as file:
        backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
        dist.init_process_group(
            backend, init_method=f"file://{file.name}.group", rank=0, world_size=1
        )
        try:
            ranks = Ranks(device(), init_device_mesh(kind, (1,)), "full")
            ranks.shards = True  # which one rank has no need of
            sharded = _trained(folder, ranks).model.parameters()
            off = max(_off(whole(sharded[n]).detach(), p.detach()) for n, p in plain.items())
        finally:
            dist.destroy_process_group()
    assert type(next(iter(sharded.values()))).__name__ == "DTensor"
    assert off < _EXACT, f"weights are {off:.3g} off"
    return {"weights_off": off}


def _lora(rehearse: bool) -> dict[str, Any]:
    """A step of a LoRA adapter: it moves, what is below does not."""
    if importlib.util.find_spec("peft") is None:
        raise SkipCase("peft is not importable")
    folder = Folder(_shape(rehearse))
    learner = Learner.fresh(folder.model, Ranks(device()), shape=LoraShape(16, 32))
    named = dict(learner.model.module.named_parameters())
    before = {name: p.detach().clone() for name, p in named.items()}
    metrics = learner.train(*folder.batch(lora_rank=16, learning_rate=1e-3)).metrics
    moved = {name for name, p in named.items() if not torch.equal(before[name], p.detach())}
    assert moved, "nothing moved"
    assert all(".lora_" in name for name in moved), f"moved below the adapter: {sorted(moved)[:3]}"
    return {"tensors_moved": len(moved), "grad_norm": metrics["grad_norm"]}


def _resume(rehearse: bool) -> dict[str, Any]:
    """Three steps at once, and one, a checkpoint, a new learner from it, and two more: the same bits."""
    folder = Folder(_shape(rehearse))
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        batch, given = folder.batch(precision="auto", learning_rate=1e-3)
        straight = Learner.fresh(folder.model, Ranks(device()))
        for _ in range(3):
            straight.train(batch, given)
        first = Learner.fresh(folder.model, Ranks(device()))
        report = first.train(batch, given)
        store = CheckpointStore(ArtifactStore(str(folder.root / "store")), "bench", "policy")
        store.publish(first, batch, report, keep=2)
        again = store.load(1, folder.model, ranks=Ranks(device()))
        for _ in range(2):
            again.train(batch, given)
    finally:
        torch.use_deterministic_algorithms(False)
    pairs = zip(straight.model.parameters().items(), again.model.parameters().values(), strict=True)
    unlike = [name for (name, a), b in pairs if not torch.equal(a, b)]
    assert not unlike, f"{len(unlike)} tensors differ, the first is {unlike[0]}"
    return {"tensors_equal": len(straight.model.parameters())}


def _synchronous(rehearse: bool) -> dict[str, Any]:
    """The phases of a step add up to its time: the device's work is counted where it is done."""
    folder = Folder(_shape(rehearse))
    learner = Learner.fresh(folder.model, Ranks(device()))
    assert isinstance(StepCost(learner.model.shape, learner.model.device).seconds, dict)
    for _ in range(2):
        metrics = learner.train(*folder.batch()).metrics
    return {
        n: metrics[n] for n in ("seconds", "seconds_forward", "seconds_backward", "seconds_other")
    }


def _emptied(case: Callable[[bool], dict[str, Any]], rehearse: bool) -> dict[str, Any]:
    with emptied():
        return case(rehearse) | {"peak_gib": peak_gib()}


def cases(*, rehearse: bool) -> dict[str, Callable[[], dict[str, Any]]]:
    found = {
        "float32": _float32, "bfloat16": _bfloat16, "fsdp": _fsdp, "lora": _lora, "resume": _resume,
        "phases": _synchronous,
    }  # fmt: skip
    return {name: _named(partial(_emptied, case, rehearse), case) for name, case in found.items()}


def _named(made: Any, case: Any) -> Any:
    made.__doc__ = case.__doc__
    return made
