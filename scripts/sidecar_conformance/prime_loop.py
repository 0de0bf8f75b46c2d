"""A run of `vf-eval` and a loop like prime-rl's over the taskset `in_verifiers` of docs/sidecar.md, in the interpreter of verifiers.

As in prime-rl, the loop has the taskset and servers play it: each episode is a group, GRPO's advantage is reward minus the mean of its traces.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
from statistics import fmean
from typing import Any

from verifiers.v1 import load_taskset
from verifiers.v1.cli.eval.main import main as vf_eval
from verifiers.v1.clients import EvalClientConfig
from verifiers.v1.serve import EnvClient, env_config_data, serve_env
from verifiers.v1.types import SamplingConfig
from verifiers.v1.utils.loaders import resolve_env_config

STEPS, EPISODES = 8, 2
TASKSET = "in_verifiers"
AGENT = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}, "max_turns": 10}
ENV = {"taskset": {"id": TASKSET}, "agent": AGENT, "max_concurrent_agents": None}
URL = os.environ["OPENAI_BASE_URL"]


def evaluate() -> None:
    """Play two groups with the command."""
    vf_eval(
        [
            TASKSET, "-n", "2", "-m", "policy", "--client.base-url", URL, "--client.api-key-var", "OPENAI_API_KEY",
            "--env.agent.harness.id", "null", "--env.agent.runtime.type", "subprocess", "--env.agent.max-turns", "10",
            "--env.max-concurrent-agents", "None", "--no-push", "--no-rich",
        ]
    )  # fmt: skip


async def train(address: str) -> None:
    """Play steps of groups by two workers."""
    client = EnvClient(address)
    await client.wait_for_server_startup()
    tasks = iter(load_taskset(resolve_env_config(ENV).taskset))
    policy = EvalClientConfig(base_url=URL, api_key_var="OPENAI_API_KEY")
    for step in range(STEPS):
        runs = [
            client.run(policy, "policy", SamplingConfig(), task.data.model_dump(mode="json"))
            for task in itertools.islice(tasks, EPISODES)
        ]
        for episode in await asyncio.gather(*runs):
            assert episode.ok, (episode.errors, [trace.errors for trace in episode.traces])
            print(f"step {step}: {_advantages(episode)}", flush=True)  # noqa: T201
    await client.close()


def _advantages(episode: Any) -> list[float]:
    rewards = [trace.reward for trace in episode.traces]
    for trace in episode.traces:
        credit = trace.info["sidecar"]
        assert len(credit["votes"]) == len(credit["advantages"]) == trace.num_turns
        assert abs(trace.reward - fmean(credit["rewards"])) < 1e-6
    return [round(reward - fmean(rewards), 3) for reward in rewards]


def main() -> None:
    evaluate()
    spawn = multiprocessing.get_context("spawn")
    names = spawn.Queue()
    data = env_config_data(resolve_env_config(ENV))
    given = {"max_workers": 2, "address": "tcp://127.0.0.1:0", "address_queue": names, "config_data": data, "elastic": False}  # fmt: skip
    server = spawn.Process(target=serve_env, kwargs=given)
    server.start()
    try:
        asyncio.run(train(names.get(timeout=120)))
    finally:
        server.terminate()
        server.join()


if __name__ == "__main__":
    main()
