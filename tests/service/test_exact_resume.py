"""A learner may be killed at any moment: who goes on from what it left comes to the same bits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.service.killed_learner import LANDMARKS


@pytest.mark.timeout(300)
def test_after_a_kill_at_every_kind_of_moment_the_weights_are_those_of_the_undisturbed_run(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-m", "tests.service.killed_learner", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for kind, found in json.loads(done.stdout).items():
        assert len(found["trials"]) == 2 * len(LANDMARKS[kind])
        for trial in found["trials"]:
            assert trial["killed"], trial
            assert trial["resumed"] == 0, (trial, done.stderr[-2000:])
            assert trial["digest"] == found["digest"], trial
