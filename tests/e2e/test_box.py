"""A machine with six cards, as far as one without any shows it: who is started where, and that what is killed comes back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import Deployment, submit, wait_for
from tests.unit.supervisor.test_cards import torch_for
from triforge.supervisor.engines import VERSIONS

pytestmark = pytest.mark.timeout(300)

# In the place of an interpreter that has SGLang: says its version, and serves with the local engine.
ENGINE = f"""#!{sys.executable}
import os, sys
if "metadata" in sys.argv[2]:
    print("{VERSIONS["sglang"]}")
else:
    known = ("--model-path", "--served-model-name", "--port", "--weight-version", "--log-level")
    options = [option for option in sys.argv if option.startswith(known)]
    os.execv("{sys.executable}", ["{sys.executable}", "-m", "services.local_engine", *options])
"""
CARDS = "#!/bin/sh\nfor n in 0 1 2 3 4 5; do echo $n, GPU-$n, NVIDIA L40S, 46068; done\n"


def children(pid: int) -> list[int]:
    """The ranks of a torchrun."""
    command = ["ps", "-o", "pid=", "--ppid", str(pid)]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return sorted(map(int, found.split()))


def shown(pid: int) -> str:
    """The cards that a process sees."""
    variables = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return next(v.partition("=")[2] for v in variables if v.startswith("CUDA_VISIBLE_DEVICES="))


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


async def test_box(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("nvidia-smi", CARDS), ("python-sglang", ENGINE)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(torch_for("cu130", tmp_path)))
    monkeypatch.setenv("TRIFORGE_ENGINE_PYTHON", str(tmp_path / "python-sglang"))
    deployment = Deployment.made(tmp_path, tiny_model)
    document = tmp_path / "run.toml"
    text = document.read_text().replace("[trainer.policy]", "[trainer.policy]\nranks = 2")
    document.write_text(f"{text}\n[machine]\ngpus = '6'\n")
    try:
        deployment.start()
        assert "learner of policy: cards 3-4, 2 ranks" in (tmp_path / "up.log").read_text()
        before = deployment.pids()
        placed = {name: shown(pid) for name, pid in before.items() if name[:7] in ("engine-", "learner")}  # fmt: skip
        assert placed == {
            "engine-policy": "0", "engine-reward": "1", "engine-rewriter": "2", "learner-policy": "3,4", "learner-reward": "5",
        }  # fmt: skip
        settings = deployment.settings()
        run = await submit(settings, steps=6, checkpoint_every=6)
        await wait_for(settings, run.id, step=2)
        os.kill(before["engine-policy"], signal.SIGKILL)
        _, second = children(before["learner-policy"])
        os.kill(second, signal.SIGKILL)
        ended = await wait_for(settings, run.id)
        assert (ended.status, ended.step) == ("finished", 6), ended.reason
        after = deployment.pids()
        assert after["engine-policy"] != before["engine-policy"]
        assert after["learner-policy"] == before["learner-policy"], "torchrun starts ranks itself"
        log = (deployment.state / "logs" / "learner-policy.log").read_text()
        assert "is trained again" in log
        ranks = children(after["learner-policy"])
        assert len(ranks) == 2
        assert second not in ranks
    finally:
        deployment.close()
    assert not alive(ranks)
    log = (deployment.state / "logs" / "learner-policy.log").read_text()
    assert "SignalException" not in log, "a stop is no error"
