"""New weights under running requests, on both paths, over in-process ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from services.local_engine.engine import Engine
from tests.unit.local_engine.models import (
    plain_logprobs,
    plain_model,
    random_prompts,
)
from tests.unit.local_engine.update_paths import (
    UPDATE_PATHS,
    Trainer,
    advance,
    ask,
    trainer_of,
    weights_of,
)
from tests.unit.local_engine.wire import generate, scores, until

CLOSE = 1e-4
NAME = "model.layers.0.mlp.up_proj.weight"
GREEDY = {"max_new_tokens": 6, "temperature": 0.0, "ignore_eos": True}


@pytest.fixture
def folders(folder: Path, other_folder: Path) -> list[Path]:
    return [folder, other_folder]


@pytest.fixture
async def trainer(client: httpx.AsyncClient) -> AsyncIterator[Trainer]:
    async with trainer_of(client, "weights") as found:
        yield found


def tokens_of_spans(result: dict[str, Any]) -> list[int]:
    return [t for s in result["meta_info"]["weight_versions"] for t in range(s["start"], s["end"])]


@pytest.mark.parametrize("mode", ["in_place", "retract"])
async def test_requests_live_through_updates_on_every_path_and_name_the_version_of_each_token(
    trainer: Trainer, engine: Engine, folders: list[Path], mode: str
) -> None:
    client, prompts = trainer.client, random_prompts(16)
    await ask(client, "/pause_generation", {"mode": "in_place"})
    sampling = {"max_new_tokens": 60, "ignore_eos": True}
    tasks = [asyncio.create_task(generate(client, p, sampling=sampling)) for p in prompts]
    await until(lambda: len(engine.scheduler.waiting) == 16)
    await advance(engine, 4)
    assert len(engine.scheduler.running) == 16
    for version, path in enumerate(list(UPDATE_PATHS) * 3, 1):
        await ask(client, "/pause_generation", {"mode": mode})
        await UPDATE_PATHS[path](
            trainer,
            folders[version % 2],
            weight_version=str(version),
            flush_cache=mode == "retract",
        )
        assert (await client.get("/model_info")).json()["weight_version"] == str(version)
        await advance(engine, 4)
    await ask(client, "/continue_generation")
    models = [plain_model(folder) for folder in folders]
    for prompt, result in zip(prompts, await asyncio.gather(*tasks), strict=True):
        meta, ids = result["meta_info"], result["output_ids"]
        spans = meta["weight_versions"]
        assert meta["finish_reason"] == {"type": "length", "length": 60}
        assert [s["version"] for s in spans] == [str(v) for v in range(7)]
        assert tokens_of_spans(result) == list(range(60))
        assert meta["num_retractions"] == (6 if mode == "retract" else 0)
        # In place the keys of the old weights stay, so only the first span is what one model alone would say.
        for span in spans if mode == "retract" else spans[:1]:
            expected = plain_logprobs(models[int(span["version"]) % 2], prompt, ids)
            part = slice(span["start"], span["end"])
            assert scores(result)[part] == pytest.approx(expected[part], abs=CLOSE)


@pytest.mark.parametrize("path", UPDATE_PATHS)
async def test_no_request_is_lost_while_weights_change_without_a_pause(
    trainer: Trainer, engine: Engine, folders: list[Path], path: str
) -> None:
    client = trainer.client
    sampling = {"max_new_tokens": 120, "ignore_eos": True}
    tasks = [
        asyncio.create_task(generate(client, p, sampling=sampling)) for p in random_prompts(16)
    ]
    await until(lambda: len(engine.scheduler.running) == 16)
    for version in range(1, 5):
        await UPDATE_PATHS[path](trainer, folders[version % 2], weight_version=str(version))
    for result in await asyncio.gather(*tasks):
        assert tokens_of_spans(result) == list(range(120))
        versions = [int(s["version"]) for s in result["meta_info"]["weight_versions"]]
        assert versions == sorted(set(versions))
    last = await generate(client, [5, 6], sampling=GREEDY)
    assert last["meta_info"]["weight_version"] == "4"
    expected = plain_logprobs(plain_model(folders[0]), [5, 6], last["output_ids"])
    assert scores(last) == pytest.approx(expected, abs=CLOSE)


async def test_tensors_of_a_session_are_swapped_in_together_at_its_end(
    trainer: Trainer, folders: list[Path]
) -> None:
    client, other = trainer.client, weights_of(folders[1])
    before = await generate(client, [5, 6], sampling=GREEDY)
    await ask(client, "/begin_weight_update")
    for name, tensor in other.items():
        await trainer.send({name: tensor})
    during = await generate(client, [5, 6], sampling=GREEDY)
    assert scores(during) == pytest.approx(scores(before))
    await ask(client, "/end_weight_update")
    after = await generate(client, [5, 6], sampling=GREEDY)
    expected = plain_logprobs(plain_model(folders[1]), [5, 6], after["output_ids"])
    assert scores(after) == pytest.approx(expected, abs=CLOSE)
    assert after["meta_info"]["weight_version"] == "0"  # no other was named


def nan(tensor: torch.Tensor) -> torch.Tensor:
    return torch.full_like(tensor, float("nan"))


BAD: dict[str, tuple[Any, str]] = {
    "unknown": (lambda t: {"model.nonsense": t}, "tensor model.nonsense is unknown"),
    "shape": (lambda t: {NAME: t[:-1]}, f"tensor {NAME} has shape [47, 32], expected [48, 32]"),
    "not finite": (lambda t: {NAME: nan(t)}, f"tensor {NAME} holds values that are not finite"),
}


@pytest.mark.parametrize("case", BAD)
async def test_bad_tensors_are_refused_by_name_and_nothing_of_their_session_is_served(
    trainer: Trainer, folders: list[Path], case: str
) -> None:
    make, says = BAD[case]
    client, other = trainer.client, weights_of(folders[1])
    before = await generate(client, [5, 6], sampling=GREEDY)
    await ask(client, "/begin_weight_update")
    await trainer.send({"model.norm.weight": other["model.norm.weight"]})
    refused = await trainer.send(make(other[NAME]), status=400)
    assert refused["success"] is False
    assert says in refused["message"]
    again = await trainer.send({NAME: other[NAME]}, status=400, weight_version="9")
    assert "an earlier call of this session was refused" in again["message"]
    await ask(client, "/end_weight_update")
    await client.get("/flush_cache")
    after = await generate(client, [5, 6], sampling=GREEDY)
    assert (after["output_ids"], scores(after)) == (before["output_ids"], scores(before))
    assert after["meta_info"]["weight_version"] == "0"
    await ask(client, "/begin_weight_update")  # and the next session is as good as new
    await trainer.send({NAME: other[NAME]}, weight_version="9")
    await ask(client, "/end_weight_update")
    assert (await client.get("/model_info")).json()["weight_version"] == "9"


async def test_bad_broadcasts_are_refused_and_the_old_weights_keep_serving(
    trainer: Trainer,
) -> None:
    client = trainer.client
    before = await generate(client, [5, 6], sampling=GREEDY)
    named = {"names": [NAME], "dtypes": ["float32"], "shapes": [[48, 32]]}
    for change, says in (
        ({"group_name": "unknown"}, "group 'unknown' does not exist; joined are ['weights']"),
        ({"dtypes": ["int8"]}, "is of type 'int8'; expected one of"),
        ({"weight_version": 5}, "weight_version is 5"),
        ({"shapes": [[48, 32], [1]]}, "1 names, 1 dtypes and 2 shapes"),
        ({"shapes": [[-1]]}, "shapes.0.0 is -1"),
        ({"names": None}, "names is missing"),
    ):
        await ask(client, "/begin_weight_update")
        body = named | {"group_name": "weights"} | change
        refused = await ask(client, "/update_weights_from_distributed", body, status=400)
        assert says in refused["message"]
        await ask(client, "/end_weight_update")
    after = await generate(client, [5, 6], sampling=GREEDY)
    assert scores(after) == pytest.approx(scores(before))


async def test_groups_that_cannot_be_joined_are_refused(
    trainer: Trainer,
) -> None:
    body: dict[str, Any] = {
        "master_address": "127.0.0.1", "master_port": 1, "rank_offset": 1, "world_size": 2, "backend": "gloo",
        "group_name": "weights",
    }  # fmt: skip
    path = "/init_weights_update_group"
    assert "was joined before" in (await ask(trainer.client, path, body, 400))["message"]
    for change, says in (
        ({"backend": "nccl"}, "backend is 'nccl'"),
        ({"rank_offset": 2}, "rank_offset is 2 in a group of 2"),
        ({"rank_offset": 0}, "rank_offset is 0"),
        ({"master_port": "1"}, "master_port is '1'; Input should be a valid integer"),
    ):
        assert says in (await ask(trainer.client, path, body | change, 400))["message"]
