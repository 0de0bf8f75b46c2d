"""The process of one part: its cases one after the other, each written when it begins and when it has ended."""

from __future__ import annotations

import importlib
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.gpu.results import read, write
from bench.gpu.supervise import PARTS, SkipCase


def machine() -> dict[str, Any]:
    """What the figures are of."""
    torch, transformers = (importlib.import_module(name) for name in ("torch", "transformers"))
    gpu = torch.cuda.is_available()
    return {
        "device": torch.cuda.get_device_name(0) if gpu else f"CPU, {os.cpu_count()} cores",
        "memory_gib": round(torch.cuda.get_device_properties(0).total_memory / 2**30, 1)
        if gpu
        else 0,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def cases_of(part: str, *, rehearse: bool) -> dict[str, Callable[[], dict[str, Any]]]:
    """What a part has to run, by name; functions without arguments, whose docstrings say what is done."""
    found: dict[str, Callable[[], dict[str, Any]]] = importlib.import_module(
        f"bench.gpu.{part}_part"
    ).cases(rehearse=rehearse)
    return found


def summary(case: Any) -> str:
    """What a case is; of one with arguments, what the function or the one that it wraps is."""
    said = vars(case).get("__doc__") or getattr(case, "func", case).__doc__
    return str(said).splitlines()[0]


def _list(*, rehearse: bool) -> int:
    for part in PARTS:
        print(part)
        for name, case in cases_of(part, rehearse=rehearse).items():
            print(f"    {name:28s} {summary(case)}")
    return 0


def main(part: str, path: str, rehearse: bool, chosen: str) -> int:
    if not part:
        return _list(rehearse=rehearse)
    file = Path(path)
    document = read(file)
    document["machine"] = machine()
    wanted = tuple(name for name in chosen.split(",") if name) or ""
    found = cases_of(part, rehearse=rehearse)
    planned = {name: case for name, case in found.items() if name.startswith(wanted)}
    document["planned"] = [*planned]
    for name, case in planned.items():
        if name in document["cases"]:
            continue
        entry: dict[str, Any] = {"status": "running", "began": time.time()}
        document["cases"][name] = entry
        write(file, document)
        started = time.monotonic()
        try:
            entry |= {"figures": case(), "status": "ok"}
        except SkipCase as reason:
            entry |= {"status": "skipped", "why": str(reason)}
        except Exception as error:  # noqa: BLE001 - written down; the next case runs
            traceback.print_exc()
            said = str(error).strip().splitlines() or [""]
            entry |= {"status": "failed", "why": f"{type(error).__name__}: {said[0][:300]}"}
        entry["seconds"] = round(time.monotonic() - started, 2)
        write(file, document)
        print(
            f"   {name}: {entry['status']}, {entry['seconds']} s {entry.get('why', '')}", flush=True
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3] == "1", sys.argv[4]))
