"""`python -m environments.household --out DIR`: careless demonstrations, the files of a supervised warm start."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from environments.household.warm_start import Carelessness, write_demonstrations
from triforge.errors import TriforgeError


def main(arguments: Sequence[str]) -> int:
    """Write them and print what was played."""
    parser = argparse.ArgumentParser(prog="python -m environments.household", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--count", type=int, default=1000, help="episodes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--random-rate", type=float, default=0.2, help="share of random commands")
    parser.add_argument(
        "--forget-rate", type=float, default=0.5, help="share of forgotten treatments"
    )
    parser.add_argument(
        "--inadmissible-share", type=float, default=0.3, help="of the random commands"
    )
    parser.add_argument("--flip-rate", type=float, default=0.0, help="share of wrong labels")
    parser.add_argument("--generate", default="{}", help="options of the generator, JSON")
    parser.add_argument(
        "--options", default='{"wording": "terse"}', help="wording and format, JSON"
    )
    given = vars(parser.parse_args(arguments))
    careless = Carelessness(**{name: given.pop(name) for name in Carelessness.__annotations__})
    for name in ("generate", "options"):
        given[name] = json.loads(given[name])
    try:
        counts = write_demonstrations(given.pop("out"), careless=careless, **given)
    except TriforgeError as error:
        sys.stderr.write(f"{error.kind}: {error.detail}\n")
        return 1
    sys.stdout.write(json.dumps(counts) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
