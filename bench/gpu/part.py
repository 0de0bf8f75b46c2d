"""The process of one part: its cases one after the other, each written when it begins and when it has ended.

A part is a module `<part>_part` with `CASES` and their small `REHEARSAL`, by name: functions of a scratch folder that return
figures, with what they do as docstring.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.gpu.results import read, write
from bench.gpu.supervise import SkipCase

Case = Callable[[Path], dict[str, Any]]
_LIMIT_S = {
    "box": 300.0,
    "loop": 470.0,
    "weights": 420.0,
}  # of one case, unless its part has less left


def machine() -> dict[str, Any]:
    """Return the device, its memory and the versions."""
    torch, transformers = (importlib.import_module(name) for name in ("torch", "transformers"))
    device, memory = f"CPU, {os.cpu_count()} cores", 0
    if torch.cuda.is_available():
        device, memory = torch.cuda.get_device_name(0), torch.cuda.mem_get_info()[1]
    return {
        "device": device, "memory_gib": round(memory / 2**30, 1), "torch": torch.__version__, "cuda": torch.version.cuda,
        "transformers": transformers.__version__, "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }  # fmt: skip


def cases_of(part: str, *, rehearse: bool) -> dict[str, Case]:
    """Return the cases of a part, by name."""
    module = importlib.import_module(f"bench.gpu.{part}_part")
    found: dict[str, Case] = module.REHEARSAL if rehearse else module.CASES
    return found


def run(case: Case) -> dict[str, Any]:
    """Run a case on an empty device in an empty folder and return its figures."""
    device = importlib.import_module("bench.gpu.device")
    with tempfile.TemporaryDirectory() as scratch, device.emptied():
        figures = case(Path(scratch))
        peak = device.peak_gib()
    return figures | ({"peak_gib": peak} if peak else {})


def main(part: str, path: str, rehearse: bool, chosen: str) -> int:
    file = Path(path)
    document = read(file)
    document["machine"] = machine()
    wanted = tuple(name for name in chosen.split(",") if name) or ""
    found = cases_of(part, rehearse=rehearse)
    planned = {name: case for name, case in found.items() if name.startswith(wanted)}
    document["planned"] = [*planned]
    limit_s = _LIMIT_S.get(part, 240.0) * (4 if rehearse else 1)
    for name, case in planned.items():
        if name in document["cases"]:
            continue
        document["cases"][name] = entry = {"status": "running"}
        write(file, document)
        started = time.monotonic()
        faulthandler.dump_traceback_later(limit_s, exit=True)
        try:
            entry |= {"figures": run(case), "status": "ok"}
        except SkipCase as reason:
            entry |= {"status": "skipped", "why": str(reason)}
        except Exception as error:  # noqa: BLE001 - written down; the next case runs
            traceback.print_exc()
            summary = str(error).strip().splitlines() or [""]
            entry |= {"status": "failed", "why": f"{type(error).__name__}: {summary[0][:300]}"}
        faulthandler.cancel_dump_traceback_later()
        entry["seconds"] = round(time.monotonic() - started, 2)
        write(file, document)
        summary = f"{entry['status']}, {entry['seconds']} s {entry.get('why', '')}"
        print(f"   {name}: {summary}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3] == "1", sys.argv[4]))
