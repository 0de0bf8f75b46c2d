"""Several processes that train one model: FSDP2 over the ranks of torchrun, and what they agree on.

Each rank holds a share of every tensor, of its gradient and of its optimiser state, and takes a share of an update's
forward passes. One rank is the ordinary case: then everything here is the identity.

    torchrun --nproc-per-node 2 -m services.trainer learner --role acts

PyTorch's `fully_shard` shards block by block, so that only one block is whole at a time on a GPU. On a CPU, where ranks
share the memory anyway, blocks stay whole within an update, and gradients are exchanged once an update.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

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

Floats = npt.NDArray[np.float32]


class Ranks:
    """The processes that train together, seen from one of them.

    Args:
        device: where this one trains.
        mesh: of all of them; None is this one alone.
    """

    def __init__(self, device: torch.device, mesh: DeviceMesh | None = None) -> None:
        self.device, self._mesh = device, mesh
        self.rank = 0 if mesh is None else dist.get_rank()
        self.world = 1 if mesh is None else mesh.size()

    @staticmethod
    def join(device: torch.device | None = None) -> Ranks:
        """This process among those that torchrun started, by its environment; alone without one."""
        told = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= set(os.environ)
        world = int(os.environ["WORLD_SIZE"]) if told else 1
        kind = "cuda" if torch.cuda.is_available() else "cpu"
        if world == 1:
            return Ranks(device or torch.device(kind))
        local = torch.device(kind, int(os.environ["LOCAL_RANK"])) if kind == "cuda" else device
        if kind == "cuda":
            torch.cuda.set_device(local)
        # Words between ranks are CPU tensors, also where weights are on GPUs.
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo", timeout=_PATIENCE
        )
        return Ranks(local or torch.device(kind), init_device_mesh(kind, (world,)))

    def leave(self) -> None:
        """Part from the others, in order."""
        if self._mesh is not None:
            dist.destroy_process_group()

    # ---- what they agree on ----

    def any(self, flag: bool) -> bool:
        """Whether any rank says so; all of them ask at the same place."""
        return flag if self.world == 1 else self.sum(float(flag)) > 0

    def sum(self, value: float) -> float:
        """The sum over the ranks, the same on each."""
        if self.world == 1:
            return value
        whole = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(whole)
        return float(whole)

    def merge(self, values: Floats) -> Floats:
        """Flat arrays of which every rank filled its own cells, the others 0: filled everywhere."""
        if self.world > 1:
            dist.all_reduce(torch.from_numpy(values))
        return values

    def tell(self, word: str | None = None) -> str:
        """Rank 0 says a word, everybody returns it. The others wait for it, for days if need be."""
        if self.world == 1:
            return word or ""
        raw = (word or "").encode()
        size = torch.tensor([len(raw)])
        dist.broadcast(size, 0)
        body = torch.zeros(int(size), dtype=torch.uint8)
        if raw and self.rank == 0:
            body = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
        dist.broadcast(body, 0)
        return bytes(body.tolist()).decode()

    # ---- work ----

    def share(self, plan: Sequence[list[int]]) -> Iterator[tuple[list[int], bool, bool]]:
        """This rank's forward passes: the rows, whether they count, whether it is the last one.

        Every rank has as many as any other, for they meet in each; who has none left repeats one that does not count.
        """
        turns = -(-len(plan) // self.world)
        for turn in range(turns):
            number = turn * self.world + self.rank
            counts = number < len(plan)
            yield plan[number if counts else 0], counts, turn == turns - 1

    # ---- tensors ----

    def shard(self, scorer: nn.Module) -> None:
        """Leave this rank its share of a model's tensors; the model's own blocks one by one, then the rest."""
        if self._mesh is None:
            return
        keep = self.device.type == "cpu"
        blocks = [m for m in scorer.modules() if isinstance(m, GradientCheckpointingLayer)]
        for block in blocks:
            fully_shard(block, mesh=self._mesh, reshard_after_forward=not keep)
        fully_shard(scorer, mesh=self._mesh)

    def exchange(self, scorer: nn.Module, *, last: bool) -> None:
        """Say whether the backward pass that follows is the last before the optimiser's step."""
        if isinstance(scorer, FSDPModule) and self.device.type == "cpu":
            scorer.set_requires_gradient_sync(last)

    def settle(self, scorer: nn.Module) -> None:
        """Let go of whole tensors, so that the next pass sees what the optimiser makes of this rank's shares."""
        for module in scorer.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def place(self, value: Tensor, like: Tensor) -> Tensor:
        """A whole tensor as this rank's share of it, laid out as `like`."""
        value = value.to(like.device)
        if isinstance(like, DTensor):
            # Every rank has the whole; nothing is sent.
            return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)
        return value


def whole(tensor: Tensor) -> Tensor:
    """A tensor with the shares of all ranks in it; every rank has to ask for it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shares(named: dict[str, Any]) -> bool:
    """Whether these are shares of tensors and not the tensors themselves."""
    return any(isinstance(value, DTensor) for value in named.values())
