"""The sidecar in the stack's containers: no policy of ours, and a trainer outside that draws, plays and reports.

Every other rollout is the expert's, the others are aimless. The container that the trainer talks to is killed on the way.
"""

from __future__ import annotations

import json
import time
from typing import Any

from scripts.calling import ROOT
from scripts.compose_test.stack import Stack
from tests.service.sidecar_trainer import FakeTrainer
from triforge.sidecar import Sidecar

PROFILE = {"COMPOSE_PROFILES": "sidecar", "TRIFORGE_POLICY_MODEL_URL": "none"}
WITHOUT = {"COMPOSE_PROFILES": "cpu", "TRIFORGE_POLICY_MODEL_URL": ""}
STEPS, _GROUPS, _ROLLOUTS = 4, 4, 4
_POOL = ROOT / "configs" / "pools" / "household-tiny.json"
_KILLED_AFTER = 2
_OURS = {"policy-model", "engine-policy", "learner-policy"}


def train(stack: Stack) -> dict[str, Any]:
    """Train from outside; return steps and versions of the run, and what is wrong with them."""
    began = time.monotonic()
    pool = stack.post("pools", "/v1/pools", {"name": "outside", **json.loads(_POOL.read_text())})
    config = {
        "run": {"groups_per_step": _GROUPS, "eval_every": 0, "staleness_bound": 1},
        "env_adapter": {"played_by": "trainer", "rollouts": _ROLLOUTS},
        # the demo's own preset teaches by labels, which a trainer outside has none of
        "algorithm": {"preset": "rlanything", "overrides": {"reward_band": "none"}},
    }
    made = stack.post("runs", "/v1/runs", {"pool": pool["id"], "name": "outside", "config": config})
    with Sidecar(f"http://127.0.0.1:{stack.ports['pools']}", pool["id"], key=stack.key) as sidecar:
        trainer, credits = FakeTrainer(sidecar, careless=True), []
        for step in range(STEPS):
            if step == _KILLED_AFTER:
                stack.kill("env-adapter")
            credits += trainer.step(_GROUPS)[2]
    run = stack.get("runs", f"/v1/runs/{made['id']}")
    wrong = [f"{name} runs" for name in sorted(_OURS & set(stack.services()))]
    if run["status"] != "running" or run["step"] < STEPS - 1:
        wrong.append(f"the run is {run['status']} at step {run['step']}")
    if not all(any(credit.votes) for credit in credits):
        wrong.append("a rollout has no votes")
    if run["reward_version"] <= 1:  # the first is the judge that was begun with
        wrong.append("the judge was not trained")
    return {"run_s": round(time.monotonic() - began, 1), "wrong": wrong,
            "step": run["step"], "judge": run["reward_version"]}  # fmt: skip
