"""The model that plays programs in the stack, and the document of its run. By itself, because it needs torch."""

from __future__ import annotations

import shutil
from pathlib import Path

from scripts.calling import ROOT
from scripts.compose_test.stack import Stack
from tests.one_process.reading_model import build_reading_model

_DOCUMENT = ROOT / "tests" / "compose" / "programs.toml"
_MODEL = "/models/reading"


def lay_ready(stack: Stack, folder: Path) -> None:
    """Put the model and the document into the volume, and have compose read the file for programs as well."""
    staged = folder / "programs"
    shutil.rmtree(staged, ignore_errors=True)
    build_reading_model(staged / "reading")
    shutil.copy(_DOCUMENT, staged / "programs.toml")
    stack.put_models(staged)
    stack.set(
        COMPOSE_FILE="docker-compose.yml:docker-compose.code.yml", TRIFORGE_CONFIG="/models/programs.toml",
        POLICY_MODEL=_MODEL, REWARD_MODEL=_MODEL, REWRITER_MODEL=_MODEL,
    )  # fmt: skip
