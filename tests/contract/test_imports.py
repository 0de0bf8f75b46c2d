"""Imports: a part imports with nothing else of ours there, and a process starts with few files.

The arrows between packages are import-linter's (`make check`), which reads them from the sources. Here they are imported in
fact: by a string, an entry point or a plug-in as well.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from services.trainer.__main__ import SHARDINGS

pytestmark = pytest.mark.timeout(300)  # torch is loaded, on a machine that may be busy
ROOT = Path(__file__).parents[2]
LIGHT = ("policy", "env_adapter", "reward", "dashboard")
HEAVY_SERVICES = ("local_engine", "trainer")
SERVICES = (*LIGHT, *HEAVY_SERVICES)
HEAVY = {"torch", "transformers"}
TORCH = {*HEAVY, "safetensors", "tokenizers"}
WEB = {"fastapi", "starlette", "uvicorn"}
TABLES = {"pyarrow", "pandas"}  # numpy comes with the options of estimators, which a document names
# What may not be there when a process can take over the work of a dead one: the fewer files, the sooner that is.
# Alembic is loaded where a schema changes, the compiler of torch where something is trained.
WITH_TORCH = (("trainer", "learner"), ("local_engine", "main"))
FORBIDDEN: dict[tuple[str, str], set[str]] = {
    ("trainer", "learner"): WEB | {"sqlalchemy", "alembic"},
    ("trainer", "api"): {"torch", "transformers", "safetensors", "pandas", "alembic"},
    ("env_adapter", "rollout_worker"): TORCH | WEB | TABLES | {"alembic"},
    ("env_adapter", "adapt_worker"): TORCH | WEB | TABLES | {"alembic"},
    ("reward", "judge_worker"): TORCH | WEB | TABLES | {"sqlalchemy", "alembic"},
    ("local_engine", "main"): {"transformers", "torch._dynamo", "sympy", "sqlalchemy", "celery", "redis"},
}  # fmt: skip


def at_start(service: str, function: str) -> list[ast.stmt]:
    """The imports that `__main__` does on its way into a function's work: its own, and those of the function itself."""
    tree = ast.parse((ROOT / "services" / service / "__main__.py").read_text(encoding="utf-8"))
    (work,) = (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == function)
    return [n for n in (*tree.body, *work.body) if isinstance(n, (ast.Import, ast.ImportFrom))]


def start(service: str, function: str) -> dict[str, Any]:
    program = "\n".join(map(ast.unparse, at_start(service, function)))
    return {"name": f"{service} {function}", "program": program}


def alone(service: str) -> dict[str, Any]:
    others = [f"services.{other}" for other in SERVICES if other != service]
    heavy = HEAVY if service in LIGHT else ()
    return {
        "name": service,
        "package": f"services.{service}",
        "refused": [*others, "environments", *heavy],
    }


@pytest.fixture(scope="module")
def loaded() -> dict[str, list[str]]:
    """By the name of a job, what came of it; see `importing`."""
    outside = ["services", "environments", *HEAVY]
    jobs = [
        {"load": ["httpx", "pydantic"], "then": [
            *(start(*process) for process in FORBIDDEN if process not in WITH_TORCH),
            {"name": "library", "package": "triforge", "but": "triforge.web", "refused": [*outside, *WEB]},
            {"name": "web", "package": "triforge.web", "refused": outside},
            {"load": ["triforge.web.guard"], "then": [*map(alone, LIGHT)]},
            {"load": ["torch"], "then": [*(start(*process) for process in WITH_TORCH)]},
            {"load": ["transformers.modeling_utils"], "then": [*map(alone, HEAVY_SERVICES)]},
        ]},
    ]  # fmt: skip
    command = [sys.executable, "-m", "tests.contract.importing", json.dumps(jobs)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("part", ["library", "web", *SERVICES])
def test_a_part_imports_without_the_others_and_stays_light(
    loaded: dict[str, list[str]], part: str
) -> None:
    assert loaded[part] == []


@pytest.mark.parametrize(("service", "function"), FORBIDDEN)
def test_a_process_loads_nothing_at_its_start_that_its_first_job_does_not_need(
    loaded: dict[str, list[str]], service: str, function: str
) -> None:
    assert len(at_start(service, function)) > 5, "the function does its imports elsewhere; look there"  # fmt: skip
    modules = loaded[f"{service} {function}"]
    assert len(modules) > 200
    assert set(modules) & FORBIDDEN[service, function] == set()


def test_the_learner_offers_every_way_to_shard_there_is() -> None:
    source = (ROOT / "services" / "trainer" / "learner" / "parallel" / "ranks.py").read_text()
    named = ", ".join(f'"{name}"' for name in SHARDINGS)
    assert f"Sharding = Literal[{named}]" in source
