"""The metrics of workers."""

from __future__ import annotations

import socket

import httpx
import pytest

from triforge.config import Settings
from triforge.errors import ConfigError
from triforge.metrics import serve_metrics
from triforge.supervisor.ports import free_port


def test_a_worker_with_a_port_serves_its_metrics_and_says_that_it_is_alive() -> None:
    port = free_port()
    server = serve_metrics(Settings(metrics_port=port))
    assert server is not None
    try:
        found = httpx.get(f"http://127.0.0.1:{port}/metrics")
        assert "process_cpu_seconds_total" in found.text
        assert httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
    finally:
        server.shutdown()
        server.server_close()


def test_a_worker_without_a_port_serves_none() -> None:
    assert serve_metrics(Settings()) is None


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigError, match=rf"TRIFORGE_METRICS_PORT: given {port}, where .* in use"
        ):
            serve_metrics(Settings(metrics_port=port))
