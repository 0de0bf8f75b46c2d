"""Harbor's validators on files of ours. Runs in an environment of Harbor's; imports nothing of ours."""

import sys
from pathlib import Path

from harbor.models.task.task import Task


def main() -> int:
    """Say what each file is; 1 when one is not valid."""
    bad = 0
    for name in sys.argv[1:]:
        path = Path(name)
        valid = Task.is_valid_dir(path)
        verdict = Task(path).name if valid else "NOT VALID"
        sys.stdout.write(f"harbor, {path.name}: {verdict}\n")
        bad += not valid
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
