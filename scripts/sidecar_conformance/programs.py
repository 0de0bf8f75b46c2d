"""Programs in the interpreters of others' packages, the tasks that they play, and their first policy."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sysconfig
from pathlib import Path
from typing import Any, Final

from scripts.calling import ROOT
from triforge.cli.model_folders import model_folder
from triforge.environments import registry
from triforge.types import GenerateSpec

BEGINNER: Final[Any] = getattr(registry.family("household"), "beginner")  # noqa: B009 (of the family, not of the protocol)
TASKS: Final = GenerateSpec(count=32, seed=1, options=BEGINNER.generate)
_BEHIND: Final = "import sys\nsys.path.append({!r})\n"  # of every process, as its sitecustomize


def beginner_folder() -> Path:
    """Return the folder of a tiny policy that plays these tasks now and then."""
    return model_folder(
        "policy", "tiny", tell=print, env="household", generate=BEGINNER.generate, options=BEGINNER.options
    )  # fmt: skip


async def begin(
    folder: Path, stack: contextlib.AsyncExitStack, python: Path, *words: str | Path, **given: str
) -> asyncio.subprocess.Process:
    """Start an interpreter in a folder, with these environment variables; it is killed at the end of the stack if it still runs."""
    (folder / "sitecustomize.py").write_text(_BEHIND.format(sysconfig.get_path("purelib")))
    process = await asyncio.create_subprocess_exec(
        python, *words, cwd=folder,
        env=os.environ | {
            "PATH": f"{python.parent}:{os.environ['PATH']}", "HOME": str(folder), "PYTHONPATH": f"{folder}:{ROOT}",
            "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TRL_EXPERIMENTAL_SILENCE": "1", **given,
        },
    )  # fmt: skip
    stack.callback(_kill, process)
    return process


def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
