"""Write task folders as the rows of a pool: `python -m environments.harbor FOLDER ... > tasks.jsonl`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from environments.harbor.family import FAMILY
from environments.harbor.folder import read_folder
from triforge.errors import TriforgeError


def main(folders: list[str]) -> int:
    """Write a row for each folder that can be played, name the others with the reason; return the exit status."""
    refused = 0
    for folder in folders:
        try:
            params = read_folder(Path(folder))
            FAMILY.validate(params)
        except TriforgeError as error:
            refused += 1
            sys.stderr.write(f"{folder}: {error.detail}\n")
        else:
            sys.stdout.write(json.dumps({"params": params}) + "\n")
    sys.stderr.write(f"{len(folders) - refused} of {len(folders)} folders\n")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
