"""Every config in configs/ trains two steps in one process, with models that have random weights.

A family is tested here as soon as its config exists: `configs/NAME.toml`, and `configs/pools/NAME.json` with the pool that
it is meant for (the body of `POST /v1/pools`). The same holds for methods, `methods/*/NAME.toml`. Only sizes are made small
(and `TINY`); wording, options, prompts and algorithm stay what the config says. A family whose packages are missing is skipped with the sentence that names the command.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from experiments.one_process import OneProcess
from triforge.config import merge, parse, read_document
from triforge.environments import registry
from triforge.errors import ConfigError
from triforge.types import PoolRequest, RunStep

pytestmark = pytest.mark.timeout(240)

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"
METHODS = (*CONFIGS.glob("methods/*.toml"), *ROOT.glob("methods/*/*.toml"))
PATHS = {
    **{path.stem: path for path in CONFIGS.glob("*.toml") if not path.stem.startswith("demo")},
    **{f"methods/{path.stem}": path for path in METHODS},
}  # the demonstration plays its own
NAMES = sorted(PATHS)
ELSEWHERE = (
    "alfworld",  # needs game files: tests/contract/alfworld
    "osworld",  # played by tests/e2e/test_screens.py, with a model that sees
    "methods/vlm_rl",  # the same
    "verifiers",  # played by `make conformance`, in an interpreter of its own
    "mcp",  # needs a server of the operator's: tests/unit/environments/test_mcp.py
)
POOLS = dict.fromkeys(
    ("methods/istar", "methods/opd", "methods/audit"), "household"
)  # of configs that play the pool of another
STEPS, GROUPS, TASKS = 2, 2, 3

SMALL: dict[str, Any] = {
    "run": {"steps": STEPS, "groups_per_step": GROUPS, "eval_every": 0, "step_deadline_s": 200.0},
    "models": {
        "policy": {"max_new_tokens": 8},
        # held to its two words and hot: a random judge votes both ways, so there is always something to learn
        "reward": {"max_new_tokens": 12, "temperature": 5.0, "regex": r"\\boxed\{-?1\}"},
        "rewriter": {"max_new_tokens": 16},
    },
    "env_adapter": {"rollouts": 4, "max_steps": 3, "episode_deadline_s": 120.0},
    "reward": {"votes": 2, "deadline_s": 120.0},
    "adaptation": {"max_pending": 1, "candidates": 1, "diagnosis_tokens": 4, "solver_tries": 1},
    "trainer": {
        role: {"learning_rate": 1e-3, "updates_per_step": 1, "token_budget": 16384, "max_rows": 32}
        for role in ("policy", "reward")
    },
    # random weights never succeed; without the band the judge's learner works all the same
    "algorithm": {"overrides": {"reward_band": "none"}},
}
TINY: dict[str, dict[str, Any]] = {
    # additions to `SMALL` with which random weights solve something: of the config (`run`) and of the pool's generator (`generate`)
    "methods/at_grpo": {
        "run": {
            "models": {"policy": {"max_new_tokens": 30}},
            "env_adapter": {"admissible_only": True},
        },
    },
    # random weights earn the same in all rollouts, and its filter keeps no such group
    "methods/starpo_s": {"run": {"algorithm": {"overrides": {"group_filter": "none"}}}},
    # an answer that cannot be read is not judged
    "methods/spark": {
        "generate": {"options": {"puzzles": ["truth"]}},
        "run": {"models": {"policy": {"max_new_tokens": 30, "regex": r"\\boxed\{(true|false)\}"}}},
    },
    "methods/rlve": {
        "generate": {"options": {"puzzles": ["truth"]}},
        "run": {
            "models": {"policy": {"max_new_tokens": 30, "regex": "<answer>(true|false)</answer>"}},
            "methods": {"rlve": {"rollouts": 4, "options": {"puzzles": ["truth"]}}},
        },
    },
}

# Families that start programs, and a critic with many updates: what is left out takes time and tests nothing more.
SHORT: dict[str, dict[str, Any]] = {
    "desktop": {"run": {"groups_per_step": 1}},
    "miniwob": {"run": {"groups_per_step": 1}},
    "methods/pa_rl": {"methods": {"pa_rl": {"updates": 4, "candidates": 2}}},
}


def pool_of(name: str) -> PoolRequest:
    """The pool that a config is meant for, with a few tasks only."""
    file = CONFIGS / "pools" / f"{POOLS.get(name, Path(name).name)}.json"
    body: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    if "environment" not in body:
        body["environment"] = family_of(name)
    small = {"count": TASKS, "heldout": 1}
    if not body.get("tasks"):
        tiny = TINY.get(name, {}).get("generate", {})
        body["generate"] = merge({**body.get("generate", {}), **small}, tiny)
    return PoolRequest.model_validate({**body, "name": f"e2e-{name.replace('/', '-')}"})


def family_of(name: str) -> str:
    """The family whose name a config's begins with, the longest if there are several."""
    found = [family for family in registry.known() if name.startswith(family)]
    assert found, (
        f"configs/{name}.toml: no family is called like this; known are {', '.join(registry.known())}"
    )
    return max(found, key=len)


def run_of(name: str) -> dict[str, Any]:
    """The config, small, without the models that it names."""
    document = read_document(PATHS[name])
    for role in document.get("models", {}).values():
        role.pop("path", None)
    small = merge(merge(document, SMALL), TINY.get(name, {}).get("run", {}))
    small = merge(small, SHORT.get(name, {}))
    parse(small)
    return small


def test_every_family_has_a_config_and_every_config_a_family() -> None:
    found = {pool_of(name).environment.partition(":")[0] for name in NAMES}
    assert found == set(registry.known())


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ELSEWHERE])
async def test_two_steps_are_trained_from_the_config(
    name: str, tmp_path: Path, any_text_model: Path, request: pytest.FixtureRequest
) -> None:
    pool = pool_of(name)
    if pool.environment == "openenv":
        pool = _at(pool, request.getfixturevalue("openenv_server"))
    try:
        registry.family(pool.environment)
    except ConfigError as error:
        pytest.skip(error.detail)
    roles = ("policy", "reward", "rewriter")
    async with OneProcess(tmp_path, dict.fromkeys(roles, any_text_model)) as deployment:
        made = await deployment.create_pool(pool)
        document = run_of(name)
        run = await deployment.train(made.id, document, name=pool.name)
        steps = deployment.steps(run.id)
    played = document["run"]["groups_per_step"] * document["env_adapter"]["rollouts"]
    assert (run.status, run.step) == ("finished", STEPS), run.reason
    assert [step.step for step in steps] == list(range(STEPS + 1))
    for step in steps[1:]:
        assert step.metrics["trajectories"] >= played
        assert step.metrics["infrastructure_failures"] == 0, "an episode was not measured"
    _moved(steps)
    assert steps[-1].policy_version > steps[0].policy_version or name not in TINY
    critic = parse(document).algorithm.resolved.needs_critic
    assert all(("policy/critic/loss" in step.metrics) == critic for step in steps[1:])


def _at(pool: PoolRequest, url: str) -> PoolRequest:
    """The pool with its server at another address."""
    assert pool.generate is not None
    generate = pool.generate.model_copy(update={"options": {**pool.generate.options, "url": url}})
    return pool.model_copy(update={"generate": generate})


def _moved(steps: list[RunStep]) -> None:
    """Each model has new weights after each step, or the step says that there was nothing to train it on."""
    for before, after in pairwise(steps):
        for role, old, new in (
            ("policy", before.policy_version, after.policy_version),
            ("reward", before.reward_version, after.reward_version),
        ):
            rows = after.metrics[f"rows/{role}"]
            assert new == old + (rows > 0), f"step {after.step}: {rows:g} rows for {role}"
    if steps[-1].metrics.get("judge/votes"):
        assert steps[-1].policy_version > steps[0].policy_version, "random votes always differ"
