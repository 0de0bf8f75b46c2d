"""`make bench`: every bench in turn. Each prints figures of one run on this machine, side by side."""

from __future__ import annotations

import os
import subprocess
import sys

BENCHES = (
    "acceptance",
    "async",
    "control_plane",
    "gateway",
    "reload",
    "sessions",
    "trainer",
    "sandbox",
    "environments",
    "household",
)


def main() -> int:
    """Run all benches; returns 1 if one of them failed."""
    failed = []
    for name in BENCHES:
        print(f"== bench/{name}.py", flush=True)
        env = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        if subprocess.run([sys.executable, "-m", f"bench.{name}"], env=env, check=False).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
