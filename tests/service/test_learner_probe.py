"""A learner of several nodes answers its probe on every node, also while it waits for the others."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_the_first_rank_of_a_second_node_answers_while_it_waits_for_the_first(
    tmp_path: Path,
) -> None:
    port = free_port()
    ranks = {"RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    ranks |= {"MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    ours = {"TRIFORGE_METRICS_PORT": str(port), "TRIFORGE_ARTIFACTS_URL": str(tmp_path)}
    learner = subprocess.Popen(
        [sys.executable, "-m", "services.trainer", "learner", "--role", "policy"],
        env={**os.environ, **ranks, **ours, "TRIFORGE_HOST": "127.0.0.1"},
        stderr=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + 120
        while time.monotonic() < end:
            assert learner.poll() is None
            try:
                assert httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
                break
            except httpx.TransportError:
                time.sleep(0.2)
        else:
            raise AssertionError("nobody answers")
    finally:
        learner.kill()
        learner.wait()
