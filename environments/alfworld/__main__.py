"""Write games that the real engine lets win, as game files: `python -m environments.alfworld`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from environments.alfworld.engine import engine
from environments.alfworld.files import write_game
from environments.alfworld.games import GeneratorOptions, Tally, proved_games
from triforge.environments.kit import parse_model
from triforge.environments.rows import object_of
from triforge.errors import TriforgeError


def main(arguments: list[str] | None = None) -> int:
    """Draw, prove and write; prints a line for each game and the tally. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, required=True, help="folder, to be named in ALFWORLD_DATA"
    )
    parser.add_argument("--count", type=int, default=60, help="games to keep")
    parser.add_argument("--seed", type=int, default=0, help="of the games")
    parser.add_argument("--generate", default="{}", help="options of the generator, JSON")
    given = parser.parse_args(arguments)
    tally = Tally()
    try:
        wanted = parse_model(
            GeneratorOptions, object_of(given.generate, "--generate"), "alfworld options"
        )
        made = engine()
        sources = made.sources()
        games = proved_games(made, count=given.count, seed=given.seed, wanted=wanted, tally=tally)
        for number, world in enumerate(games):
            path = write_game(given.out, number, given.seed, world, sources)
            sys.stdout.write(f"{path}\n")
    except TriforgeError as error:
        sys.stderr.write(f"{error.detail}\n")
        return 1
    sys.stdout.write(f"{tally}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
