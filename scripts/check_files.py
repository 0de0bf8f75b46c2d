"""Check plain files: trailing whitespace, one newline at the end, size, and that TOML, YAML and JSON parse.

Usage: python scripts/check_files.py [--fix] FILE...
`--fix` mends whitespace; the rest is only reported. Exit status 1 when something is left to mend. Files under tests/
need not parse, for broken documents are test data, nor do templates of a Helm chart.
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import yaml

MAX_BYTES = (
    500_000  # larger things belong into a release or an artifact store, not into the history
)


LARGE = {"demo/judge/model.safetensors": 801_000}  # a judge that takes an hour to make


def tidy(text: str) -> str:
    """Return the text without trailing blanks and with exactly one newline at its end (empty stays empty)."""
    lines = [line.rstrip(" \t\r") for line in text.split("\n")]
    body = "\n".join(lines).rstrip("\n")
    return body + "\n" if body else ""


def parse_problem(path: Path, text: str) -> str | None:
    """Why a structured file does not parse, or None."""
    try:
        if path.suffix == ".toml":
            tomllib.loads(text)
        elif path.suffix in {".yaml", ".yml"}:
            list(yaml.safe_load_all(text))
        elif path.suffix == ".json":
            json.loads(text)
    except (ValueError, yaml.YAMLError) as error:
        return f"does not parse as {path.suffix[1:]}: {error}"
    return None


def problems(path: Path, *, fix: bool) -> list[str]:
    """Return what is left to mend in one file; with `fix`, its whitespace is mended in place."""
    data = path.read_bytes()
    found = []
    most = LARGE.get(path.as_posix(), MAX_BYTES)
    if len(data) > most:
        found.append(f"has {len(data)} bytes, more than {most}")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return found
    wanted = tidy(text)
    if wanted != text and fix:
        path.write_text(wanted, encoding="utf-8")
    elif wanted != text:
        found.append("has trailing whitespace or no single newline at its end (mend: make fmt)")
    reason = None if {"tests", "templates"} & set(path.parts) else parse_problem(path, text)
    if reason:
        found.append(reason)
    return found


def main() -> int:
    fix = "--fix" in sys.argv[1:]
    names = [name for name in sys.argv[1:] if name != "--fix"]
    count = 0
    for path in map(Path, names):
        if not path.is_file() or path.is_symlink():
            continue
        for problem in problems(path, fix=fix):
            count += 1
            sys.stderr.write(f"{path}: {problem}\n")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
