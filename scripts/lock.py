"""Write the exact versions installed beside this interpreter as a constraints file.

Usage: python scripts/lock.py constraints.txt
"""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

HEADER = """\
# Exact versions of everything that `make setup` installs; `make lock` writes this file. To move a pin: install the
# version you want into .venv, run the tests, `make lock`. No index hosts and no local parts (+cpu) stand here: which
# build of torch is installed is the user's choice.
"""
NOT_PINNED = {"triforge", "pip", "setuptools", "wheel"}


def pins() -> list[str]:
    """The installed distributions as `name==version`, sorted, without local version parts."""
    found = {
        dist.metadata["Name"]: dist.version.partition("+")[0] for dist in metadata.distributions()
    }
    names = sorted((n for n in found if n.lower() not in NOT_PINNED), key=str.lower)
    return [f"{name}=={found[name]}" for name in names]


def main() -> None:
    """Write the file named on the command line."""
    target = Path(sys.argv[1])
    lines = pins()
    target.write_text(HEADER + "\n".join(lines) + "\n", encoding="utf-8")
    sys.stdout.write(f"lock: {len(lines)} pins in {target}\n")


if __name__ == "__main__":
    main()
