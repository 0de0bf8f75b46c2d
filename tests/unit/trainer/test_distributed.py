"""The forward passes of each rank; and that all ranks stop together. No process group is needed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from services.trainer.learner.model.token_batches import Sequences, passes
from services.trainer.learner.parallel.ranks import Interrupted, Ranks, Sharding
from services.trainer.learner.weights.tensors import Shares, save_tensors

CPU = torch.device("cpu")


class Seat(Ranks):
    """One of several ranks; `heard` is what all of them together answer when they are asked whether to stop."""

    def __init__(
        self, rank: int, heard: Sequence[bool] = (), *, world: int = 2, shards: bool = False
    ) -> None:
        super().__init__(CPU)
        self.rank, self.world, self.shards, self._heard = rank, world, shards, iter(heard)

    def any(self, flag: bool) -> bool:
        return next(self._heard, False) or flag


def sequences(lengths: Sequence[int]) -> Sequences:
    rows = [np.full(length + 1, n, dtype=np.int64) for n, length in enumerate(lengths)]
    return Sequences(rows, [np.arange(1, len(row)) for row in rows])


def never() -> bool:
    return False


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=30),
    st.integers(1, 100),
    st.integers(1, 4),
    st.booleans(),
    st.booleans(),
)
def test_every_row_counts_once_on_one_rank(
    lengths: list[int], budget: int, world: int, packed: bool, shards: bool
) -> None:
    rows = list(range(len(lengths)))
    plan = passes(rows, sequences(lengths), budget, packed=packed, ranks=world)
    counted: list[int] = []
    for rank in range(world):
        share = list(Seat(rank, world=world, shards=shards).passes(plan, never))
        assert all(found for found, _, _ in share)
        assert [last for *_, last in share if last] == [True] * (len(share) * world == len(plan))
        counted += [row for found, counts, _ in share if counts for row in found]
    assert sorted(counted) == rows


@pytest.mark.parametrize("packed", [True, False])
def test_ranks_have_about_as_much_to_do(packed: bool) -> None:
    lengths = [5 + 7 * n % 90 for n in range(60)]
    made = sequences(lengths)
    for world in (2, 3, 4):
        plan = passes(list(range(60)), made, 200, packed=packed, ranks=world)
        work = [sum(lengths[r] for rows in plan[k::world] for r in rows) for k in range(world)]
        assert max(work) < 1.06 * min(work)


def test_ranks_that_shard_a_model_have_equally_many_passes_the_last_ones_of_a_row() -> None:
    plan = [[4, 5], [0, 1], [2, 3], []]
    for shards, wanted in (
        (False, [([0, 1], True, False)]),
        (True, [([0, 1], True, False), ([4], False, True)]),
    ):
        assert list(Seat(1, shards=shards).passes(plan, never)) == wanted


def test_ranks_that_shard_a_model_stop_before_the_pass_at_which_one_of_them_is_asked_to() -> None:
    plan = [[n] for n in range(12)]
    share = Seat(1, [False, False, True], shards=True).passes(plan, never)
    assert [next(share)[0], next(share)[0]] == [[1], [3]]
    with pytest.raises(Interrupted):
        next(share)


def test_ranks_that_hold_everything_meet_before_the_first_pass_only() -> None:
    plan = [[0], [1], [2], []]
    assert [rows for rows, _, _ in Seat(1, [False, True]).passes(plan, never)] == [[1]]
    with pytest.raises(Interrupted):
        next(Seat(1, [True]).passes(plan, never))


def test_one_rank_hears_at_once() -> None:
    stops = iter([False, True])
    own = Ranks(CPU).passes([[0], [1]], lambda: next(stops))
    assert next(own)[0] == [0]
    with pytest.raises(Interrupted):
        next(own)


class First(Ranks):
    """The first of two ranks, with the texts it has broadcast."""

    def __init__(self) -> None:
        super().__init__(CPU)
        self.world, self.sent = 2, list[str]()

    def broadcast(self, text: str = "") -> str:
        self.sent.append(text)
        return text

    def any(self, flag: bool) -> bool:
        return flag


def test_a_file_is_the_one_that_safetensors_writes(tmp_path: Path) -> None:
    tensors = {
        "model.b": torch.randn(3, 5),
        "model.a": torch.randn(7),
        "step": torch.tensor(3.0),
        "model.c": torch.randn(4, 6).T.contiguous(),
    }
    save_tensors(tensors, tmp_path / "known")
    Shares("optimizer", tensors, Ranks(CPU)).write(tmp_path)
    assert (tmp_path / "optimizer.safetensors").read_bytes() == (tmp_path / "known").read_bytes()


def test_each_rank_writes_its_part_and_the_first_one_an_index(tmp_path: Path) -> None:
    tensors = {f"t{n}": torch.randn(4, n) for n in range(1, 6)}
    ranks = First()
    Shares("model", tensors, ranks, dtype=torch.bfloat16).write(tmp_path)
    assert json.loads(ranks.sent[0]) == {"write": "model", "folder": str(tmp_path)}
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 2 * sum(t.numel() for t in tensors.values())
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    assert set(index["weight_map"]) == set(tensors)
    assert {path.name for path in tmp_path.glob("*.safetensors")} == {first}
    ranks.rank = 1
    Shares("model", tensors, ranks, dtype=torch.bfloat16).write(tmp_path)
    for name, file in index["weight_map"].items():
        assert torch.equal(load_file(tmp_path / file)[name], tensors[name].bfloat16())
    assert set(index["weight_map"].values()) == {first, second}


@pytest.mark.parametrize(
    ("kind", "sharding", "home"),
    [
        ("cuda", "auto", None), ("cuda", "full", None), ("cuda", "replicate", "cuda"),
        ("cpu", "auto", "cpu"), ("cpu", "full", None), ("cpu", "replicate", "cpu"),
    ],
)  # fmt: skip
def test_a_model_that_is_shared_out_is_not_read_to_the_device(
    kind: str, sharding: Sharding, home: str | None
) -> None:
    ranks = Ranks(torch.device(kind, 0), sharding=sharding)
    assert ranks.home == ranks.device
    ranks.mesh = cast(Any, object())
    assert (ranks.home and ranks.home.type) == home
