"""A part in a process of its own, under its limit, and what that process finds around it. No torch."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("imports", "engine", "learner", "throughput", "prefixes", "weights", "colocate", "loop")
CASE_S = {"loop": 470.0, "weights": 420.0}  # of one case, unless its part has less left
_CASE_S = 240.0


class SkipCase(Exception):  # noqa: N818 - no failure
    """The machine lacks what the case needs; the words say what."""


def prepare(packages: Path, *, rehearse: bool) -> dict[str, str]:
    """The environment of parts: the tree and the carried packages importable, nothing fetched, entry points known."""
    own = ROOT / "var/gpu-metadata"
    _metadata(own)
    paths = [str(ROOT), str(own), *_installed(packages)]
    if given := os.environ.get("PYTHONPATH"):
        paths.append(given)
    fixed = {
        "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    if rehearse:
        fixed |= {
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        }
    return os.environ | fixed


def _installed(wheels: Path) -> list[str]:
    """The folder into which the carried wheels were installed, once; none without wheels."""
    names = sorted(path.name for path in wheels.glob("*.whl"))
    if not names:
        return []
    number = hashlib.sha256(" ".join([sys.version, *names]).encode()).hexdigest()[:12]
    target = Path(tempfile.gettempdir(), f"triforge-gpu-packages-{number}")
    if not target.is_dir():
        aside = Path(tempfile.mkdtemp())
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-index",
            "--no-deps",
            "--target",
            str(aside),
        ]
        subprocess.run([*command, *(str(wheels / name) for name in names)], check=True)
        aside.rename(target)
    return [str(target)]


def _metadata(folder: Path) -> None:
    """Entry points as an installed triforge has them: environments are found by these."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    info = folder / f"triforge-{project['version']}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    about = f"Metadata-Version: 2.1\nName: triforge\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(about)


def run_part(
    part: str, path: Path | None, environ: dict[str, str], *, rehearse: bool, chosen: str = "",
    until: float = float("inf"),
) -> int | None:  # fmt: skip
    """Run it until it ends, or its time or that of a case is over; the exit code, None for one that was ended here."""
    command = [
        sys.executable,
        "-m",
        "bench.gpu.part",
        part,
        str(path or ""),
        str(int(rehearse)),
        chosen,
    ]
    child = subprocess.Popen(command, env=environ, cwd=ROOT, start_new_session=True)
    try:
        while child.poll() is None:
            time.sleep(0.1)
            if time.monotonic() > until or _stuck(path, CASE_S.get(part, _CASE_S)):
                return None
        return child.returncode
    finally:
        _end(child)


def _stuck(path: Path | None, limit_s: float) -> bool:
    try:
        cases = json.loads(path.read_text())["cases"].values() if path else ()
    except (OSError, ValueError):
        return False
    return any(c["status"] == "running" and time.time() - c["began"] > limit_s for c in cases)


def _end(child: subprocess.Popen[bytes]) -> None:
    """The process, and all that it started."""
    for number in (15, 9):
        try:
            os.killpg(child.pid, number)
            child.wait(5)
        except (ProcessLookupError, PermissionError):
            break
        except subprocess.TimeoutExpired:
            continue
    child.wait()
