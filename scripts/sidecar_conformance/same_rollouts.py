# ruff: noqa: T201 (a command that prints)
"""TRL with the sidecar and without it, on the same tasks: the sidecar changes the rewards and nothing else."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path
from typing import Any, Final

from scripts.sidecar_conformance.programs import BEGINNER, TASKS, begin, beginner_folder
from tests.service.sidecar_services import CONFIG, Deployment

_PROGRAM: Final = Path(__file__).parent / "trl_pair.py"
_STEPS: Final = 12
_OUTCOME: Final = {"use_votes": False, "outcome": "binary"}  # the reward is success

Done = dict[str, list[Any]]


async def compare(python: Path) -> None:
    """Train with votes and without their weight, each time also without the sidecar. AssertionError: something differs that must not."""
    judged, alone = await pair(python, {})
    assert judged["rollouts"][0] == alone["rollouts"][0], "other rollouts in the first step"
    for part in ("rewards", "losses"):
        assert judged[part][0] != alone[part][0], f"the same {part} with votes"
    outcome, alone = await pair(python, _OUTCOME)
    different = [name for name, value in outcome.items() if value != alone[name]]
    assert not different, f"other {', '.join(different)} with the sidecar, whose reward is success"
    assert {0.0, 1.0} == {reward for step in alone["rewards"] for reward in step}
    assert any(loss for loss, _ in alone["losses"][1:])
    tokens = sum(sum(mask) for _, _, masks in alone["rollouts"] for mask in masks)
    print(
        f"with and without the sidecar: the same {tokens} sampled tokens and losses in {_STEPS} steps"
    )


async def pair(python: Path, overrides: dict[str, Any]) -> tuple[Done, Done]:
    """Return a training over a sidecar whose algorithm has these overrides, and one without a sidecar on the tasks that were drawn."""
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        deployment = Deployment(folder, generate=TASKS)
        await deployment.start()
        stack.push_async_callback(deployment.close)
        deployment.submit(
            env_adapter=CONFIG["env_adapter"] | {"rollouts": 8, "options": BEGINNER.options},
            run=CONFIG["run"] | {"groups_per_step": 4},
            adaptation={"controller": "none"},
            algorithm={"overrides": {"reward_band": "none", **overrides}},
        )
        judged = await _train(python, folder, TRIFORGE_ENV_ADAPTER_URL=deployment.url)
        draws = [one for one in deployment.exchange if one["path"].endswith("/draw")]
        drawn = [t for one in draws if one["status"] == 200 for t in one["reply"]["tasks"]]
        tasks = folder / "tasks.json"
        tasks.write_text(json.dumps(drawn), encoding="utf-8")
        return judged, await _train(python, folder, TASKS=str(tasks))


async def _train(python: Path, folder: Path, **given: str) -> Done:
    out = folder / "done.json"
    async with contextlib.AsyncExitStack() as stack:
        process = await begin(
            folder, stack, python, _PROGRAM, MODEL=str(beginner_folder()), STEPS=str(_STEPS), OUT=str(out), **given,
        )  # fmt: skip
        assert await process.wait() == 0, f"{_PROGRAM.name} ended with {process.returncode}"
    found: Done = json.loads(out.read_text(encoding="utf-8"))
    return found
