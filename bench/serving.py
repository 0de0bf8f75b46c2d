"""Cost of serving: a policy service in front of an engine without latency, and weights that change under load.

Two parts, each in processes of its own: `bench/gateway.py` and `bench/reload.py` print their figures.
The table at the end compares the main figures with their goals.

Run: python -m bench.serving [--only gateway|reload] [--small] [--soak] [--json FILE]
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PARTS = ("gateway", "reload")
SMALL = {"gateway": ("--seconds", "1"), "reload": ("--updates", "3", "--clients", "8")}
ADDED_MS, SHARE, PUBLISH = 3.0, 0.4, 2.0


@dataclass(frozen=True)
class Row:
    """One figure; `met` is None where nothing is wanted of it."""

    what: str
    measured: str
    wanted: str = ""
    met: bool | None = None


def show_rows(what: str, rows: Iterable[Row]) -> None:
    print(f"\n| {what} | measured | wanted | |\n|---|---|---|---|")
    for row in rows:
        met = "" if row.met is None else "met" if row.met else "missed"
        print(f"| {row.what} | {row.measured} | {row.wanted} | {met} |")


def gateway_rows(found: dict[str, Any]) -> Iterator[Row]:
    ways = found["ways"]
    if ways:
        one, together, paced = (ways[name] for name in ("one by one", "together", "paced"))
        share = one["service"]["rate"] / one["directly"]["rate"]
        yield Row("64 requests in flight, one by one: share of the direct throughput", f"{share:.0%}", f"{SHARE:.0%}", share >= SHARE)  # fmt: skip
        share = together["service"]["rate"] / together["directly"]["rate"]
        yield Row("the same, 16 requests in one of HTTP", f"{share:.0%}")
        added = _added(paced)
        yield Row("64 clients, paced: added p50", f"{added:.1f} ms", f"{ADDED_MS:g} ms", added <= ADDED_MS)  # fmt: skip
        yield Row("64 requests in flight, one by one: added p50 (queues for the cores)", f"{_added(one):.1f} ms")  # fmt: skip
    for row in found["rollouts"]:
        yield Row(f"errors of {row['rollouts']} rollouts at once", str(row["errors"]), "0", row["errors"] == 0)  # fmt: skip


def _added(way: dict[str, Any]) -> float:
    return float(way["service"]["p50_ms"] - way["directly"]["p50_ms"])


def reload_rows(found: dict[str, Any]) -> Iterator[Row]:
    load = (
        f"{found['updates']} updates under {found['clients']} clients, {found['requests']} requests"
    )
    yield Row(f"{load}: failed", str(found["failed"]), "0", found["failed"] == 0)
    wrong = found["wrong_versions"] + found["wrong_weights"]
    yield Row("tokens of a wrong version, answers of wrong weights", str(wrong), "0", wrong == 0)
    ratio = found["ratio"]
    yield Row("publish to live over reading and loading the file alone", f"{ratio:.2f}", f"{PUBLISH:g}", ratio <= PUBLISH)  # fmt: skip
    yield Row("share of the time for which requests were held", f"{found['paused_share']:.1%}")


def part(name: str, folder: Path, *more: str) -> dict[str, Any]:
    """Run a part; what it prints is seen, what it writes comes back."""
    file = folder / f"{name}.json"
    command = [sys.executable, "-m", f"bench.{name}", "--json", str(file), *more]
    done = subprocess.run(command, check=False)
    if not file.is_file():
        raise SystemExit(f"bench.{name} ended with {done.returncode} before it had found anything")
    found: dict[str, Any] = json.loads(file.read_text())
    return found | {"failed_part": done.returncode != 0}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=PARTS, help="this part alone")
    parser.add_argument(
        "--small", action="store_true", help="a quick look; its figures mean little"
    )
    parser.add_argument("--soak", action="store_true", help="4,096 rollouts at once, nothing else")
    parser.add_argument("--json", type=Path, default=Path("var/bench/serving.json"))
    options = parser.parse_args()
    names = ("gateway",) if options.soak else (options.only,) if options.only else PARTS
    with tempfile.TemporaryDirectory() as scratch:
        more = SMALL if options.small else {}
        soak = ("--soak",) if options.soak else ()
        found = {name: part(name, Path(scratch), *more.get(name, ()), *soak) for name in names}
    rows: list[Row] = []
    for name, read in (("gateway", gateway_rows), ("reload", reload_rows)):
        rows += read(found[name]) if name in found else ()
    show_rows("serving", rows)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps({"table": [asdict(row) for row in rows], **found}, indent=1))
    return int(any(one["failed_part"] for one in found.values()))


if __name__ == "__main__":
    sys.exit(main())
