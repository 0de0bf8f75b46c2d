"""Ways of new weights into an engine, and evidence that it holds them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor

from scripts.real_sglang.exchanges import PROMPT
from scripts.real_sglang.folders import WEIGHTS
from tests.contract.engine.conftest import Engine, scores, tokens
from triforge.supervisor.ports import free_port

NAMES = ("model.norm.weight", "model.layers.0.mlp.down_proj.weight")


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / WEIGHTS)


async def test_weights_from_disk_change_answers_and_come_back_exactly(engine: Engine) -> None:
    first, norm_before = await engine.generate(PROMPT), await engine.norm()
    await engine.load(engine.folders.other, "1")
    second = await engine.generate(PROMPT)
    info = await engine.info()
    assert (info["weight_version"], info["model_path"]) == ("1", str(engine.folders.other))
    assert second["meta_info"]["weight_version"] == "1"
    assert scores(second) != pytest.approx(scores(first), abs=1e-2)
    assert await engine.norm() != norm_before
    await engine.load(engine.folders.start, "2")
    third = await engine.generate(PROMPT)
    assert tokens(third) == tokens(first)
    assert scores(third) == pytest.approx(scores(first), abs=2e-3)
    assert await engine.norm() == norm_before


async def test_no_answer_from_the_cache_outlives_its_weights(engine: Engine) -> None:
    prompt = [1, *range(40, 72)]
    await engine.generate(prompt)
    await engine.load(engine.folders.other, "1")
    cached = await engine.generate(prompt)
    await engine.control("/flush_cache")
    fresh = await engine.generate(prompt)
    assert cached["meta_info"]["cached_tokens"] == 0
    assert scores(cached) == pytest.approx(scores(fresh), abs=2e-3)


async def test_a_weight_is_read_back_by_its_name(engine: Engine) -> None:
    expected = weights(engine.folders.start)["model.norm.weight"].float().tolist()
    assert await engine.norm() == pytest.approx(expected[:8], rel=1e-6)
    body = {"name": NAMES[1], "truncate_size": 2}
    rows = await engine.control("/get_weights_by_name", body)
    matrix = weights(engine.folders.start)[NAMES[1]].float()
    assert len(rows) == 2
    assert rows[0] == pytest.approx(matrix[0].tolist(), rel=1e-6)
    unknown = await engine.control(
        "/get_weights_by_name", body | {"name": "model.nonsense"}, status=400
    )
    assert unknown["error"]["message"]


async def test_a_new_version_name_changes_no_weight(engine: Engine) -> None:
    before = await engine.norm()
    await engine.control(
        "/update_weight_version", {"new_version": "7", "abort_all_requests": False}
    )
    assert (await engine.info())["weight_version"] == "7"
    assert (await engine.generate(PROMPT))["meta_info"]["weight_version"] == "7"
    assert await engine.norm() == before


async def test_updates_outside_of_a_session_are_refused(engine: Engine) -> None:
    before = await engine.norm()
    names = {"names": [NAMES[0]], "dtypes": ["float32"], "shapes": [[8]]}
    for path, body in (
        ("/update_weights_from_distributed", names),
        ("/end_weight_update", {}),
    ):
        reply = await engine.control(path, body, status=400)
        assert reply["success"] is False
        assert "begin_weight_update" in reply["message"]
    assert await engine.norm() == before


async def test_a_session_opens_once(engine: Engine) -> None:
    await engine.control("/begin_weight_update")
    try:
        reply = await engine.control("/begin_weight_update", status=400)
        assert "already open" in reply["message"]
    finally:
        await engine.control("/end_weight_update")


async def _serves_other(engine: Engine, version: str) -> None:
    expected = weights(engine.folders.other)["model.norm.weight"].float().tolist()
    assert await engine.norm() == pytest.approx(expected[:8], rel=1e-6)
    assert (await engine.info())["weight_version"] == version
    reply = await engine.generate(PROMPT)
    assert reply["meta_info"]["weight_version"] == version
    await engine.load(engine.folders.other, "8")
    assert tokens(await engine.generate(PROMPT)) == tokens(reply)


@pytest.mark.parametrize("flattened", [False, True], ids=["one_by_one", "in_one_piece"])
async def test_a_trainer_broadcasts_weights_over_gloo(engine: Engine, flattened: bool) -> None:
    """A trainer is another process: here one that joins the group as rank 0 and broadcasts."""
    group, port = f"weights-{flattened}", free_port()
    trainer = await asyncio.create_subprocess_exec(
        sys.executable, "-c", TRAINER, str(port), group, str(engine.folders.other), str(int(flattened)), *NAMES,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert trainer.stdout
    assert trainer.stdin
    try:
        assert (await trainer.stdout.readline()).strip() == b"listening"
        body: dict[str, Any] = {
            "master_address": "127.0.0.1",
            "master_port": port,
            "rank_offset": 1,
            "world_size": 2,
            "group_name": group,
            "backend": "gloo",
        }
        await engine.control("/init_weights_update_group", body)
        assert (await trainer.stdout.readline()).strip() == b"joined"
        await engine.control("/pause_generation", {"mode": "retract"})
        await engine.control("/begin_weight_update")
        chosen = {name: weights(engine.folders.other)[name] for name in NAMES}
        update: dict[str, Any] = {
            "names": list(NAMES),
            "dtypes": [str(t.dtype).removeprefix("torch.") for t in chosen.values()],
            "shapes": [list(t.shape) for t in chosen.values()],
            "group_name": group,
            "weight_version": "5",
        }
        if flattened:
            update["load_format"] = "flattened_bucket"
        trainer.stdin.write(b"broadcast\n")
        reply = await engine.control("/update_weights_from_distributed", update)
        assert reply["success"] is True
        await engine.control("/end_weight_update")
        await engine.control("/continue_generation")
        await engine.control("/destroy_weights_update_group", {"group_name": group})
        assert await trainer.wait() == 0
    finally:
        if trainer.returncode is None:
            trainer.kill()
            await trainer.wait()
    await _serves_other(engine, "5")


# The stores are nested as SGLang's own group construction nests them: the group's name, once more, and the device.
TRAINER = """
import os, sys
from datetime import timedelta
import torch, torch.distributed as dist
from safetensors.torch import load_file
port, group, folder, flattened, *names = sys.argv[1:]
limit = timedelta(seconds=120)
store = dist.TCPStore("127.0.0.1", int(port), 2, True, limit, wait_for_workers=False)
print("listening", flush=True)
inner = dist.PrefixStore(f"{group}/", dist.PrefixStore(group, store))
ranks = dist.ProcessGroupGloo(dist.PrefixStore("cpu/", inner), 0, 2, limit)
print("joined", flush=True)
sys.stdin.readline()
tensors = [load_file(folder + "/model.safetensors")[name] for name in names]
if flattened == "1":
    tensors = [torch.cat([t.flatten().view(torch.uint8) for t in tensors])]
for work in [ranks.broadcast([t], dist.BroadcastOptions()) for t in tensors]:
    work.wait()
os._exit(0)  # the interpreter's own end races with the group's threads, now that the engine has left
"""


async def test_a_group_that_was_not_made_cannot_be_left_or_used(engine: Engine) -> None:
    body = {"group_name": "unknown"}
    assert (await engine.control("/destroy_weights_update_group", body, status=400))[
        "success"
    ] is False
    await engine.control("/begin_weight_update")
    try:
        names = {"names": [NAMES[0]], "dtypes": ["float32"], "shapes": [[8]]}
        reply = await engine.control("/update_weights_from_distributed", names | body, status=400)
        assert "unknown" in reply["message"]
    finally:
        await engine.control("/end_weight_update")
