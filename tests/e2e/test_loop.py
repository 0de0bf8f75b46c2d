"""Does the loop turn, and does it go on turning when parts of it die? One deployment, one run after another.

Its APIs ask for keys: services and workers show the services' secret, people their keys, others nothing.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest

from tests.e2e.conftest import Deployment, submit, wait_for
from triforge.clients.env_adapter import EnvAdapterClient
from triforge.clients.policy import PolicyClient
from triforge.clients.trainer import TrainerClient
from triforge.config import Settings
from triforge.types import GenerateSpec, PoolRequest

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Deployment]:
    """The deployment of all tests here; it ends cleanly."""
    deployment = Deployment.made(tmp_path_factory.mktemp("loop"), tiny_model, keyed=True)
    deployment.start()
    try:
        yield deployment
        assert deployment.stop() == 0
    finally:
        deployment.close()


async def _steps(settings: Settings, run_id: str) -> list[tuple[int, int, int]]:
    client = TrainerClient(settings.trainer_url, api_key=settings.own_key)
    try:
        return [(s.step, s.policy_version, s.reward_version) for s in await client.steps(run_id)]
    finally:
        await client.close()


async def _export(settings: Settings, run_id: str, path: Path) -> list[dict[str, Any]]:
    client = TrainerClient(settings.trainer_url, api_key=settings.own_key)
    try:
        await client.export(run_id, path)
    finally:
        await client.close()
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return [row for row in rows if row["purpose"] != "evaluate"]


def _nothing_lost_nothing_twice(
    steps: list[tuple[int, int, int]], rows: list[dict[str, Any]], num_steps: int
) -> None:
    base = steps[0][1]
    assert [step for step, _, _ in steps] == list(range(num_steps + 1))
    assert [policy - base for _, policy, _ in steps] == list(range(num_steps + 1))
    keys = [(row["trajectory_id"], row["step_index"]) for row in rows]
    assert len(keys) == len(set(keys))
    groups = {(row["step"], row["group_id"]) for row in rows if row["purpose"] == "train"}
    assert len(groups) == 4 * num_steps
    for row in rows:
        if row["reason"] == "":
            assert set(row["policy_versions"]) == {base + row["step"] - 1}


async def test_a_run_trains_both_models_and_rewrites_tasks(
    deployment: Deployment, tmp_path: Path
) -> None:
    settings = deployment.settings()
    run = await wait_for(settings, (await submit(settings, steps=4)).id)
    assert (run.status, run.step) == ("finished", 4), run.reason
    steps = await _steps(settings, run.id)
    _nothing_lost_nothing_twice(steps, await _export(settings, run.id, tmp_path / "run.parquet"), 4)
    assert steps[-1][2] > steps[0][2], "the judge was trained"
    for role, url, version in (
        ("policy", settings.policy_model_url, run.policy_version),
        ("reward", settings.reward_model_url, run.reward_version),
    ):
        client = PolicyClient(url, api_key=settings.own_key)
        try:
            assert (await client.weights()).version == version, role
        finally:
            await client.close()
    pools = EnvAdapterClient(settings.env_adapter_url, api_key=settings.own_key)
    try:
        proposals = await pools.proposals(run.pool_id)
    finally:
        await pools.close()
    assert any(p.candidate_id and not p.null_control for p in proposals)


async def test_a_tenants_run_goes_round_the_loop_and_strangers_see_nothing(
    deployment: Deployment,
) -> None:
    settings = deployment.settings()
    key, other = deployment.new_key("submit", "blue"), deployment.new_key("admin", "red")

    pools = EnvAdapterClient(settings.env_adapter_url, api_key=key)
    trainer = TrainerClient(settings.trainer_url, api_key=key)
    made = await pools.create_pool(
        PoolRequest(
            name="e2e", environment="household", options={"wording": "terse"},
            generate=GenerateSpec(count=8, heldout=4, seed=5),
        )
    )  # fmt: skip
    run = await trainer.submit("e2e")
    assert (run.tenant, made.tenant) == ("blue", "blue")
    async for _, event in trainer.events(run.id):
        assert event.run_id == run.id
    ended = await trainer.run(run.id)
    assert (ended.status, ended.step) == ("finished", 1), ended.reason

    apis = (settings.env_adapter_url, settings.trainer_url, settings.policy_model_url)
    async with httpx.AsyncClient() as http:
        for url, path in zip(apis, ("/v1/pools", "/v1/runs", "/v1/weights"), strict=True):
            assert (await http.get(f"{url}{path}")).status_code == 401
            seen = await http.get(f"{url}{path}", headers={"Authorization": f"Bearer {other}"})
            assert seen.status_code == 200
            assert run.id not in seen.text or path == "/v1/weights"
            assert made.id not in seen.text
        moved = await http.post(
            f"{settings.policy_model_url}/v1/weights",
            json={},
            headers={"Authorization": f"Bearer {other}"},
        )
        assert moved.status_code == 403
    await pools.close()
    await trainer.close()

    secret = key.split("_", 2)[2]
    for log in (deployment.state / "logs").iterdir():
        assert secret not in log.read_text(errors="replace"), log.name
    listed = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "triforge", "run", "list", "--state", str(deployment.state)],
        env={**os.environ, "TRIFORGE_KEY": key, "COLUMNS": "200"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert run.id in listed.stdout


async def test_a_run_plays_ahead_of_its_training_and_keeps_the_bound(
    deployment: Deployment, tmp_path: Path
) -> None:
    settings = deployment.settings()
    # small steps, so that the weights of two steps ago still say nearly the same
    asked = await submit(settings, steps=5, staleness_bound=2, policy={"learning_rate": 1e-5})
    run = await wait_for(settings, asked.id)
    assert (run.status, run.step) == ("finished", 5), run.reason
    steps = await _steps(settings, run.id)
    rows = await _export(settings, run.id, tmp_path / "run.parquet")
    live = {step: policy for step, policy, _ in steps}
    ages = [
        live[row["step"] - 1] - version
        for row in rows
        if row["reason"] == ""
        for version in row["policy_versions"]
    ]
    assert 0 < max(ages) <= 2
    assert min(ages) >= 0
    groups = {(row["step"], row["group_id"]) for row in rows if row["purpose"] == "train"}
    assert len(groups) == len({group for _, group in groups}) == 4 * 5
    client = TrainerClient(settings.trainer_url, api_key=settings.own_key)
    try:
        last = (await client.steps(run.id))[-1].metrics
    finally:
        await client.close()
    assert last["policy/off_policy_w_mean"] == pytest.approx(1.0, abs=0.02)
    assert last["policy/off_policy_w_max"] != 1.0, "older weights have sampled some of it"


async def test_a_run_goes_on_after_its_processes_were_killed_and_all_was_restored_from_a_backup(
    deployment: Deployment, tmp_path: Path
) -> None:
    run = await submit(deployment.settings(), steps=3)
    for step, *victims in (
        (0, "rollout-worker", "judge-worker"),
        (1, "learner-policy", "engine-policy"),
    ):
        await wait_for(deployment.settings(), run.id, step=step)
        for victim in victims:
            os.kill(deployment.pids()[victim], signal.SIGKILL)
    await wait_for(deployment.settings(), run.id, step=2)
    deployment.kill()
    shutil.copytree(deployment.state, tmp_path / "copy")  # the backup of a stopped deployment
    shutil.rmtree(deployment.state)
    shutil.copytree(tmp_path / "copy", deployment.state)
    deployment.start()
    settings = deployment.settings()
    run = await wait_for(settings, run.id)
    assert (run.status, run.step) == ("finished", 3), run.reason
    rows = await _export(settings, run.id, tmp_path / "run.parquet")
    _nothing_lost_nothing_twice(await _steps(settings, run.id), rows, 3)


# asks twice, in a conversation; its reward is how much of its second answer is one letter
_AGENT = """
import json, os, urllib.request as web
key = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
messages = [{"role": "user", "content": os.environ["TRIFORGE_INSTRUCTION"]}]
for more in ("again", ""):
    body = json.dumps({"model": "policy", "messages": messages}).encode()
    reply = web.urlopen(web.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, key))
    answer = json.load(reply)["choices"][0]["message"]
    messages += [answer, {"role": "user", "content": more}]
text = answer["content"] or "-"
open(os.environ["TRIFORGE_REWARD"], "w").write(str(text.count("e") / len(text)))
"""


async def test_an_agent_of_ones_own_is_trained(deployment: Deployment, tmp_path: Path) -> None:
    settings, agent = deployment.settings(), tmp_path / "agent.py"
    agent.write_text(_AGENT)
    key = deployment.new_key("submit", "agents")
    pools = EnvAdapterClient(settings.env_adapter_url, api_key=key)
    generate = {"count": 8, "seed": 5}
    options = {"wording": "terse"}
    pool = await pools.create_pool(
        {"name": "agents", "environment": "household", "options": options, "generate": generate}
    )
    await pools.close()
    wanted = (
        "run.steps=2",
        "run.eval_tasks=0",
        "algorithm.preset=grpo",
        "adaptation.controller=none",
    )
    command = ["agent", "run", "--pool", pool.id, "--state", str(deployment.state), *(f"--set={w}" for w in wanted)]  # fmt: skip
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "triforge", *command, "--", sys.executable, str(agent)],
        env={**os.environ, "TRIFORGE_KEY": key}, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    run_id = done.stdout.split(":")[0]
    versions = [policy for _, policy, _ in await _steps(settings, run_id)]
    assert versions[-1] == versions[0] + 2, done.stdout
    rows = await _export(settings, run_id, tmp_path / "run.parquet")
    keys = [(row["trajectory_id"], row["step_index"]) for row in rows]
    assert len(keys) == len(set(keys)) == 2 * 4 * 4 * 2  # steps, groups, rollouts, turns
    for row in rows:
        assert set(row["policy_versions"]) == {versions[0] + row["step"] - 1}


async def test_a_run_on_one_card_has_engines_and_learners_take_turns(
    deployment: Deployment,
) -> None:
    settings = deployment.settings()
    run = await wait_for(settings, (await submit(settings, steps=2, colocate=True)).id)
    assert (run.status, run.step) == ("finished", 2), run.reason
    steps = await _steps(settings, run.id)
    assert [policy - steps[0][1] for _, policy, _ in steps] == [0, 1, 2]
    for role in ("policy", "reward"):
        lines = (deployment.state / "logs" / f"{role}-model.log").read_text()
        assert lines.count("the memory of 1 engines is released") == 2, "once a step"
