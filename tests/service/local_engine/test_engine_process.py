"""The local engine as a process behind a real web server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.unit.local_engine.models import build_folder

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = build_folder(tmp_path_factory.mktemp("models") / "tiny")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = ["--model-path", str(folder), "--port", str(port), "--weight-version", "4"]
    log = (folder / "log").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-m", "services.local_engine", *arguments, "--served-model-name", "tiny"],
        cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=log, stderr=log,
    )  # fmt: skip
    found = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            assert process.poll() is None, (folder / "log").read_text()
            try:
                httpx.get(f"{found}/ready")
                break
            except httpx.TransportError:
                time.sleep(0.1)
        yield found
        process.send_signal(signal.SIGTERM)
        process.wait(20)
    finally:
        process.kill()
        process.wait()
        log.close()


def test_a_real_server_generates_and_reports_its_version(address: str) -> None:
    request = {"text": "w1 w2", "sampling_params": {"max_new_tokens": 5, "ignore_eos": True}}
    reply = httpx.post(f"{address}/generate", json=request).json()
    assert len(reply["output_ids"]) == 5
    assert reply["meta_info"]["weight_version"] == "4"
    assert httpx.get(f"{address}/v1/models").json()["data"][0]["id"] == "tiny"


def test_a_client_that_hangs_up_frees_its_place(address: str) -> None:
    httpx.post(f"{address}/pause_generation", json={"mode": "in_place"})
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{address}/generate", json={"input_ids": [5], "rid": "gone"}, timeout=0.5)
    load = {"num_waiting_reqs": 1}
    for _ in range(200):
        load = httpx.get(f"{address}/server_info").json()["internal_states"][0]
        if load["num_waiting_reqs"] == 0:
            break
        time.sleep(0.05)
    assert load["num_waiting_reqs"] == 0
    httpx.post(f"{address}/continue_generation", json={})


def test_a_folder_that_is_no_model_ends_the_program_with_its_reason(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "services.local_engine", "--model-path", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 2
    assert "config.json does not exist" in done.stderr


DEEP = b"[" * 200_000
HOSTILE = {
    "nested too deeply": b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(DEEP), DEEP),
    "no text": b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 12\r\n\r\n{\"model\":\"\xff}",
    "endless headers": b"GET /ready HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 200_000,
    "another protocol": b"GET /generate HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00",
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_whatever_strangers_send_is_refused_and_the_engine_serves_on(
    address: str, what: str
) -> None:
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as link:
        link.sendall(HOSTILE[what])
        assert link.recv(4096).startswith(b"HTTP/1.1 4")
    assert httpx.get(f"{address}/ready").status_code == 200
