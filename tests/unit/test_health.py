"""The health check of containers."""

from __future__ import annotations

import subprocess
import sys

import pytest

from triforge.config import Settings
from triforge.health import main
from triforge.metrics import serve_metrics
from triforge.supervisor.ports import free_port


def test_the_exit_status_says_whether_it_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    server = serve_metrics(Settings(metrics_port=port))
    assert server is not None
    try:
        assert main([f"http://127.0.0.1:{port}/healthz"]) == 0
    finally:
        server.shutdown()
        server.server_close()
    assert main([f"http://127.0.0.1:{port}/healthz"]) == 1
    assert f"127.0.0.1:{port}" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["policy"], ["https://a/b"], ["http://", "more"]])
def test_refused_url(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "expected one http:// URL" in capsys.readouterr().err


def test_it_imports_next_to_nothing() -> None:
    code = "import sys, triforge.health; print(len(sys.modules), 'pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, check=True)
    count, pydantic = done.stdout.decode().split()
    assert (int(count) < 150, pydantic) == (True, "False")
