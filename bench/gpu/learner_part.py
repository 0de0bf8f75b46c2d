"""The learner on the device, compared with the CPU: in half precision, packed, sharded, with LoRA, resumed.

Bounds are on vectors of all gradients, as |difference| / |reference|.
"""

from __future__ import annotations

import importlib.util
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from bench.gpu.device import DEVICE, GPU
from bench.gpu.models import SHAPES, Shape, qwen_folder, rows, smaller
from bench.gpu.supervise import SkipCase
from bench.trainer import batch_of
from services.trainer.learner.checkpoint import CheckpointStore
from services.trainer.learner.learner import Learner
from services.trainer.learner.model.causal_lm import ScoringModel
from services.trainer.learner.model.lora import LoraShape
from services.trainer.learner.model.packed_attention import varlen_kernel
from services.trainer.learner.model.token_batches import Sequences
from services.trainer.learner.parallel.ranks import Ranks, whole
from triforge.store.artifacts import ArtifactStore

_EXACT, _HALF = 1e-4, 0.05
CPU = torch.device("cpu")
# Four rows of two prompts, one of them long, so that packing shares prefixes and pads.
LENGTHS = [(40, 24), (40, 9), (150, 60), (150, 13)]


class Folder:
    """A model folder of a case, and rows for it."""

    def __init__(self, shape: Shape, scratch: Path) -> None:
        self.root = scratch
        self.model = qwen_folder(scratch / "model", shape)
        heads = [[7 + i % 90 for i in range(before)] for before, _ in LENGTHS]
        self.rows = rows(LENGTHS, shape.vocabulary, prefixes=heads)

    def batch(self, **options: Any) -> tuple[Any, Any]:
        """Return a step of all rows in one forward pass."""
        return batch_of(self.rows, self.model, token_budget=4096, **options)


def _gradient(model: ScoringModel, folder: Folder, *, packed: bool) -> tuple[float, torch.Tensor]:
    """Mean log-probability of all rows and its gradient, by one forward pass."""
    _, given = folder.batch()
    ids = [torch.tensor(row.ids).numpy() for row in given]
    scored = [torch.arange(1, len(row)).numpy() for row in ids]
    tokens = Sequences(ids, scored).batch(range(len(ids)), model.device, packed=packed)
    model.module.zero_grad()
    mean = model.score(tokens, 1.0)[0].mean()
    mean.backward()
    found = [p.grad.float().flatten() for p in model.parameters().values() if p.grad is not None]
    return float(mean.detach()), torch.cat(found).detach().cpu()


def _off(found: torch.Tensor, reference: torch.Tensor) -> float:
    return float((found - reference).norm() / reference.norm())


def _float32(shape: Shape, scratch: Path) -> dict[str, Any]:
    """Compare log-probabilities and gradients in float32 with the CPU's."""
    folder = Folder(shape, scratch)
    logprob, gradient = _gradient(ScoringModel.load(folder.model, DEVICE), folder, packed=True)
    wanted, reference = _gradient(ScoringModel.load(folder.model, CPU), folder, packed=False)
    off = _off(gradient, reference)
    assert abs(logprob - wanted) < _EXACT, f"{logprob} on the device, {wanted} on the CPU"
    assert off < 10 * _EXACT, f"the gradient is {off:.3g} off, expected under {10 * _EXACT}"
    return {"logprob": logprob, "logprob_off": abs(logprob - wanted), "gradient_off": off}


def _bfloat16(shape: Shape, scratch: Path) -> dict[str, Any]:
    """Compare packed and padded rows in bfloat16 with float32; report the kernel that packs."""
    folder = Folder(shape, scratch)
    model = ScoringModel.load(folder.model, DEVICE)
    wanted, reference = _gradient(model, folder, packed=False)
    model.compute(precision="bfloat16")
    assert model.packs, "rows are not packed in bfloat16; the log says why"
    kernel = varlen_kernel()
    assert kernel or not GPU, "no kernel for variable lengths: neither flash_attn nor PyTorch's"
    found: dict[str, Any] = {"kernel": getattr(kernel, "__module__", "none")}
    for name, packed in (("packed", True), ("padded", False)):
        logprob, gradient = _gradient(model, folder, packed=packed)
        found[f"{name}_logprob_off"] = abs(logprob - wanted)
        found[f"{name}_gradient_off"] = _off(gradient, reference)
    assert {p.dtype for p in model.parameters().values()} == {torch.float32}
    assert all(off < _HALF for name, off in found.items() if name != "kernel"), found
    assert found["packed_gradient_off"] < 1e-3 + 2 * found["padded_gradient_off"], found
    return found


def _fsdp(shape: Shape, scratch: Path) -> dict[str, Any]:
    """Compare a step of one rank sharded by FSDP2 with one that holds whole tensors."""
    folder = Folder(shape, scratch)

    def trained(ranks: Ranks) -> dict[str, Any]:
        learner = Learner.fresh(folder.model, ranks)
        learner.train(*folder.batch(precision="float32"))
        return learner.model.parameters()

    plain = trained(Ranks(DEVICE))
    backend = "cpu:gloo,cuda:nccl" if GPU else "gloo"
    meeting = f"file://{scratch / 'group'}"
    dist.init_process_group(backend, init_method=meeting, rank=0, world_size=1)
    try:
        ranks = Ranks(DEVICE, init_device_mesh(DEVICE.type, (1,)), "full")
        ranks.shards = True  # which one rank has no need of
        sharded = trained(ranks)
        off = max(_off(whole(sharded[n]).detach(), p.detach()) for n, p in plain.items())
    finally:
        dist.destroy_process_group()
    assert type(next(iter(sharded.values()))).__name__ == "DTensor"
    assert off < _EXACT, f"weights are {off:.3g} off"
    return {"weights_off": off}


def _lora(shape: Shape, scratch: Path) -> dict[str, Any]:
    """Train a step of a LoRA adapter: the adapter moves, the base does not."""
    if importlib.util.find_spec("peft") is None:
        raise SkipCase("peft is not importable")
    folder = Folder(shape, scratch)
    learner = Learner.fresh(folder.model, Ranks(DEVICE), shape=LoraShape(16, 32))
    named = dict(learner.model.module.named_parameters())
    before = {name: p.detach().clone() for name, p in named.items()}
    metrics = learner.train(*folder.batch(lora_rank=16, learning_rate=1e-3)).metrics
    moved = {name for name, p in named.items() if not torch.equal(before[name], p.detach())}
    assert moved, "nothing moved"
    assert all(".lora_" in name for name in moved), f"moved below the adapter: {sorted(moved)[:3]}"
    return {"tensors_moved": len(moved), "grad_norm": metrics["grad_norm"]}


def _resume(shape: Shape, scratch: Path) -> dict[str, Any]:
    """Three steps at once, and one, a checkpoint, a new learner from it, and two more: the same bits."""
    folder = Folder(shape, scratch)
    batch, given = folder.batch(precision="auto", learning_rate=1e-3)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        straight, first = (Learner.fresh(folder.model, Ranks(DEVICE)) for _ in range(2))
        for _ in range(3):
            straight.train(batch, given)
        store = CheckpointStore(ArtifactStore(str(folder.root / "store")), "bench", "policy")
        store.publish(first, batch, first.train(batch, given), keep=2)
        again = store.load(1, folder.model, ranks=Ranks(DEVICE))
        for _ in range(2):
            again.train(batch, given)
    finally:
        torch.use_deterministic_algorithms(False)
    pairs = zip(straight.model.parameters().items(), again.model.parameters().values(), strict=True)
    unlike = [name for (name, a), b in pairs if not torch.equal(a, b)]
    assert not unlike, f"{len(unlike)} tensors differ, the first is {unlike[0]}"
    return {"tensors_equal": len(straight.model.parameters())}


_KINDS = {
    "float32": _float32, "bfloat16": _bfloat16, "fsdp": _fsdp, "lora": _lora, "resume": _resume,
}  # fmt: skip
CASES = {name: partial(case, smaller(SHAPES["0.6B"], 4)) for name, case in _KINDS.items()}
REHEARSAL = {name: partial(case, SHAPES["tiny"]) for name, case in _KINDS.items()}
