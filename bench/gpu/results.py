"""The results on disk: a file a part, written anew after each case, and the table of all of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.gpu.supervise import PARTS, run_part

Run = Callable[..., int | None]


def read(path: Path) -> dict[str, Any]:
    """Return a part's results; empty without a file."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {"machine": {}, "cases": {}}
    return found


def write(path: Path, document: dict[str, Any]) -> None:
    """Whole, or as it was."""
    aside = path.with_suffix(".new")
    aside.write_text(json.dumps(document, indent=1) + "\n")
    aside.replace(path)


def carry(folder: Path, earlier: Path) -> None:
    """Go on with the results of another folder where this one has none."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in earlier.glob("*.json"):
        if not (folder / path.name).exists():
            (folder / path.name).write_bytes(path.read_bytes())


def run_all(
    folder: Path, parts: list[str], environ: dict[str, str], *, resume: bool, rehearse: bool, chosen: str,
    seconds: float, total: float, run: Run = run_part,
) -> None:  # fmt: skip
    """Run parts one after the other, each again from the case behind one that ended its process."""
    ends = time.monotonic() + total
    folder.mkdir(parents=True, exist_ok=True)
    for part in parts:
        path = folder / f"{part}.json"
        document = read(path)
        done = {n: c for n, c in document["cases"].items() if c["status"] in ("ok", "skipped")}
        write(path, document | {"cases": done if resume else {}})
        until = min(ends, time.monotonic() + seconds)
        while time.monotonic() < until:
            print(f"== {part}", flush=True)
            code = run(part, path, environ, rehearse=rehearse, chosen=chosen, until=until)
            document = read(path)
            running = [c for c in document["cases"].values() if c["status"] == "running"]
            for case in running:
                case |= {"status": "failed", "why": _how(code)}
            if code and not document["cases"]:
                document["cases"]["begin"] = {"status": "failed", "why": _how(code)}
            write(path, document)
            if code == 0 or not running:
                break


def _how(code: int | None) -> str:
    if code is None:
        return "took longer than its limit"
    why = {-9: " (out of memory?)", 1: " (the case took too long?)"}.get(code, "")
    return f"the process ended with {code}{why}"


def table(folder: Path) -> tuple[str, int]:
    """All results of a folder as Markdown, and how many failed."""
    lines, failed, machines = [], [], []
    for part in PARTS:
        document = read(folder / f"{part}.json")
        if document["machine"] not in (*machines, {}):
            machines.append(document["machine"])
        for name, case in document["cases"].items():
            shown = [f"{n} {v:.4g}" if isinstance(v, float) else f"{n} {v}" for n, v in case.get("figures", {}).items()]  # fmt: skip
            summary = case.get("why") or ", ".join(shown)
            lines.append(f"| {part} | {name} | {case['status']} | {summary} |")
            if case["status"] not in ("ok", "skipped"):
                failed.append(f"{part} {name}: {case.get('why', 'did not end')}")
        left = [n for n in document.get("planned", []) if n not in document["cases"]]
        lines += [f"| {part} | {name} | not run | the time was over |" for name in left]
    about = [", ".join(f"{k} {v}" for k, v in machine.items()) for machine in machines]
    head = ["| part | case | | figures |", "|---|---|---|---|"]
    end = ["failed:", *failed] if failed else ["nothing failed"]
    return "\n".join(["", *about, "", *head, *lines, "", *end]), len(failed)
