"""What a process loads before it can take over the work of a dead one: the fewer files, the sooner it is there."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from services.trainer.__main__ import SHARDINGS

ROOT = Path(__file__).parents[2]
TORCH = {"torch", "transformers", "safetensors", "tokenizers"}
WEB = {"fastapi", "starlette", "uvicorn"}
TABLES = {"pyarrow", "pandas"}  # numpy comes with the options of estimators, which a document names
# Alembic is loaded where a schema changes, the compiler of torch where something is trained.
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


def loaded(imports: list[ast.stmt]) -> set[str]:
    program = "\n".join([*map(ast.unparse, imports), "import json, sys", "print(json.dumps(list(sys.modules)))"])  # fmt: skip
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(("service", "function"), FORBIDDEN)
def test_a_process_loads_nothing_at_its_start_that_its_first_job_does_not_need(
    service: str, function: str
) -> None:
    imports = at_start(service, function)
    assert len(imports) > 5, "the function does its imports elsewhere; look there"
    assert loaded(imports) & FORBIDDEN[service, function] == set()


def test_the_learner_offers_every_way_to_shard_there_is() -> None:
    source = (ROOT / "services" / "trainer" / "distributed.py").read_text()
    named = ", ".join(f'"{name}"' for name in SHARDINGS)
    assert f"Sharding = Literal[{named}]" in source
