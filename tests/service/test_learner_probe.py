"""A learner of several nodes answers its probe on every node, also while it waits for the others."""

from __future__ import annotations

import time
from pathlib import Path

import httpx

from tests.warm_processes import WarmProcess
from triforge.supervisor.ports import free_port


def test_the_first_rank_of_a_second_node_answers_while_it_waits_for_the_first(
    tmp_path: Path,
) -> None:
    port = free_port()
    ranks = {"RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    ranks |= {"MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    env = ranks | {
        "TRIFORGE_METRICS_PORT": str(port), "TRIFORGE_ARTIFACTS_URL": str(tmp_path),
        "TRIFORGE_HOST": "127.0.0.1",
    }  # fmt: skip
    command = ("services.trainer", "learner", "--role", "policy")
    with WarmProcess(*command, env=env, log=tmp_path / "learner.log") as learner:
        end = time.monotonic() + 120
        while time.monotonic() < end:
            assert learner.returncode is None, learner.output
            try:
                assert httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
                break
            except httpx.TransportError:
                time.sleep(0.2)
        else:
            raise AssertionError("the probe does not answer")
