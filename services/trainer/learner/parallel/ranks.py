"""The ranks of torchrun that train one model: what each holds of it, which passes it takes, what they exchange.

One rank is the ordinary case: then everything here is the identity.

full        a share of every tensor, of its gradient and of its optimiser state lies on each rank (FSDP2): block by block,
            so that only one block is whole at a time on a GPU; on a CPU blocks stay whole within an update, and gradients
            are reduced once an update
replicate   every rank holds all of it, and the sum of the gradients is taken once an update
auto        replicate on a CPU if that fits in half of the machine's memory, else full
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers.modeling_layers import GradientCheckpointingLayer

_PATIENCE = timedelta(days=30)  # ranks wait for work; torchrun ends them all when one dies
_TRAINED = 16  # bytes of a trained number: weight, gradient and AdamW's two moments
_FROZEN = 4  # of one that is not trained

Floats = npt.NDArray[np.float32]
Sharding = Literal["auto", "full", "replicate"]


class Interrupted(Exception):  # noqa: N818 (a signal, not a failure)
    """The learner is to stop in the middle of a step; nothing of the step is kept."""


class Ranks:
    """The processes that train together, seen from one of them; without a `mesh` it is alone.

    `shards` says whether a rank holds shares of tensors and not all of them; known after `shard`.
    """

    def __init__(
        self, device: torch.device, mesh: DeviceMesh | None = None, sharding: Sharding = "auto"
    ) -> None:
        self.device, self.mesh, self._sharding = device, mesh, sharding
        self.rank = 0 if mesh is None else dist.get_rank()
        self.world = 1 if mesh is None else mesh.size()
        self.shards = self.world > 1 and sharding == "full"

    @staticmethod
    def join(sharding: Sharding = "auto") -> Ranks:
        """Join the ranks that torchrun started, by the environment; without torchrun this process is alone."""
        kind = "cuda" if torch.cuda.is_available() else "cpu"
        world = int(os.environ.get("WORLD_SIZE", "1"))
        if world == 1:
            return Ranks(torch.device(kind), sharding=sharding)
        device = torch.device(kind)
        if kind == "cuda":
            device = torch.device(kind, int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
        # Numbers that ranks agree on are CPU tensors, also where weights are on GPUs.
        backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=_PATIENCE)
        return Ranks(device, init_device_mesh(kind, (world,)), sharding)

    @property
    def home(self) -> torch.device | None:
        """Where a model is read to; None where `shard` takes one block after another to the device, on which all may not fit."""
        shared = self._sharding == "full" or (
            self._sharding == "auto" and self.device.type != "cpu"
        )
        return None if self.mesh is not None and shared else self.device

    def leave(self) -> None:
        """Part from the others, in order."""
        if self.mesh is not None:
            dist.destroy_process_group()

    # ---- numbers ----

    def any(self, flag: bool) -> bool:
        """Whether any rank says so; all of them ask at the same place."""
        return flag if self.world == 1 else self.sum(float(flag)) > 0

    def sum(self, value: float) -> float:
        """Return the sum over the ranks, the same on each."""
        if self.world == 1:
            return value
        whole = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(whole)
        return float(whole)

    def all_reduce(self, values: Floats) -> Floats:
        """Flat arrays of which every rank filled its own cells, the others 0: filled everywhere."""
        if self.world > 1:
            dist.all_reduce(torch.from_numpy(values))
        return values

    def broadcast(self, text: str = "") -> str:
        """Return the text of rank 0 on every rank. The other ranks wait for it without a limit."""
        if self.world == 1:
            return text
        size = torch.tensor([len(text.encode())])
        dist.broadcast(size, 0)
        body = torch.zeros(int(size), dtype=torch.uint8)
        if self.rank == 0 and text:
            body = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        dist.broadcast(body, 0)
        return bytes(body.tolist()).decode()

    # ---- forward passes ----

    def passes(
        self, plan: Sequence[list[int]], should_stop: Callable[[], bool] = lambda: False
    ) -> Iterator[tuple[list[int], bool, bool]]:
        """Yield this rank's forward passes: the rows, whether they count, whether it is the last one.

        Ranks that hold shares meet in every pass, so all have the same number of passes: a rank without rows computes one row
        that does not count. Ranks that hold the whole model do not wait for each other between passes: only before the first
        pass can they stop.

        Args:
            plan: of all ranks, see `token_batches.passes`; as many passes for each, some of them without rows.
            should_stop: asked before each pass.

        Raises:
            Interrupted: a rank is to stop; raised by all of them at the same place.
        """
        mine = plan[self.rank :: self.world]
        spare = next((rows[:1] for rows in plan if rows), [])
        for turn, rows in enumerate(mine):
            meet = self.world == 1 or self.shards or turn == 0
            if meet and self.any(should_stop()):
                raise Interrupted
            if rows or self.shards:
                yield rows or spare, bool(rows), turn == len(mine) - 1

    # ---- tensors ----

    def choose_sharding(self, scorer: nn.Module) -> None:
        """Decide by the size of the model whether each rank holds shares or the whole model.

        The ranks do not communicate here. Ranks of unlike machines may disagree; `BatchTrainer` finds that later.
        """
        if self.mesh is None or self._sharding != "auto":
            return
        here = int(os.environ.get("LOCAL_WORLD_SIZE", self.world))
        needed = here * sum(
            p.numel() * (_TRAINED if p.requires_grad else _FROZEN) for p in scorer.parameters()
        )
        half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2
        self.shards = self.device.type != "cpu" or needed > half

    def shard(self, scorer: nn.Module) -> None:
        """Leave this rank its share of a model's tensors; the model's own blocks one by one, then the rest."""
        if self.mesh is None or not self.shards:
            return
        keep = self.device.type == "cpu"
        blocks = [m for m in scorer.modules() if isinstance(m, GradientCheckpointingLayer)]
        for block in blocks:
            fully_shard(block, mesh=self.mesh, reshard_after_forward=not keep)
        fully_shard(scorer, mesh=self.mesh)

    def backward(
        self, loss: Tensor, scorer: nn.Module, *, counts: bool, last: bool, weight: float = 1.0
    ) -> None:
        """Add the gradient of a pass's loss times `weight`; of one that does not count, nothing (see `passes`).

        An update's gradient is the sum over the ranks; FSDP takes the mean. On a CPU, shares of gradients are sent once an
        update, with its last backward pass.
        """
        if isinstance(scorer, FSDPModule) and self.device.type == "cpu":
            scorer.set_requires_gradient_sync(last)
        scale = weight * (self.world if self.shards else 1)
        (loss * (scale if counts else 0.0)).backward()  # type: ignore[no-untyped-call]

    def all_reduce_gradients(self, scorer: nn.Module) -> None:
        """Have the gradient of the whole update, before the optimiser's step.

        Whole tensors of shares are let go of, so that the next pass sees what the optimiser makes of the shares. What no
        rank has touched stays without a gradient.
        """
        if self.world > 1 and not self.shards:
            trained = [p for p in scorer.parameters() if p.requires_grad]
            touched = torch.tensor([float(p.grad is not None) for p in trained])
            dist.all_reduce(touched)
            for parameter, ranks in zip(trained, touched.tolist(), strict=True):
                if ranks:
                    grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                    parameter.grad = grad.contiguous()
                    dist.all_reduce(parameter.grad)
        for module in scorer.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def distribute(self, value: Tensor, like: Tensor) -> Tensor:
        """Return this rank's share of a whole tensor, laid out as `like`. No communication: every rank has the whole."""
        value = value.to(like.device)
        if isinstance(like, DTensor):
            return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)
        return value


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor gathered from the shares of all ranks. A collective call."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
