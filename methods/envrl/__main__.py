"""`python -m methods.envrl items`: chats of both objectives for the warm start of a policy."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from methods.envrl.items import write_items
from triforge.errors import TriforgeError


def main(arguments: Sequence[str]) -> int:
    """Write chats that ask for state prediction and inverse dynamics on played episodes."""
    parser = argparse.ArgumentParser(prog="python -m methods.envrl", description=main.__doc__)
    add = parser.add_argument
    add("command", choices=("items",))
    add("--in", dest="source", type=Path, required=True, help="transcripts, JSON lines")
    add("--out", dest="target", type=Path, required=True, help="chats for `supervised`")
    add("--count", type=int, required=True, help="transitions, two chats each")
    add("--options", type=json.loads, default={}, help="of [methods.envrl], JSON")
    add("--seed", type=int, default=0)
    options = vars(parser.parse_args(arguments))
    del options["command"]
    source, target = options.pop("source"), options.pop("target")
    try:
        count = write_items(source, target, **options)
    except TriforgeError as error:
        sys.stderr.write(f"{error.kind}: {error.detail}\n")
        return 1
    sys.stdout.write(f"{count} items in {target}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
