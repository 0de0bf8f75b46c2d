"""Check the words of code and docs: plain engineering English (CONTRIBUTING.md, "Words").

Usage: python scripts/check_words.py FILE...
Report words that have a plainer replacement, and docstrings that open with a question word. Exit status 1 when something is
left to mend. A line that quotes a paper or a game keeps its words with the comment `words: keep`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

_PLAIN = {
    "nobody": "name the part that does not act, or use the passive",
    "somebody": "name the part that acts",
    "whoever": "name the part that acts",
    "told": "given, reported, sent",
    "beside": "next to, with, and",
    "said": "reported, stated, or the name of the thing",
    "errand": "job",
    "errands": "jobs",
    "knob": "option",
    "knobs": "options",
    "luggage": "extra fields",
    "furniture": "name the objects",
}
_WORD = re.compile(rf"(?<![A-Za-z])({'|'.join(_PLAIN)})(?![A-Za-z]| apart)", re.IGNORECASE)
_OPENING = re.compile(r"(What|Who|Whose|Which|Of|Whether somebody)\b")
_KEPT = "words: keep"


def word_problems(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the replacement of each word that has a plainer one."""
    for number, line in enumerate(text.splitlines(), 1):
        if _KEPT not in line:
            for match in _WORD.finditer(line):
                yield number, f"{match[1]!r}: {_PLAIN[match[1].lower()]}"


def docstring_problems(text: str) -> Iterator[tuple[int, str]]:
    """Yield each docstring that opens with a question word."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(text)):
        docstring = ast.get_docstring(node) if isinstance(node, documented) else None
        if match := _OPENING.match(docstring or ""):
            line = getattr(node, "lineno", 1)
            yield line, f"docstring opens with {match[1]!r}: begin with a verb or a noun"


def main(arguments: list[str]) -> int:
    """Check each file; return the exit status."""
    found = 0
    for name in arguments:
        path = Path(name)
        text = path.read_text(encoding="utf-8")
        problems = [*word_problems(text)]
        if path.suffix == ".py":
            problems += docstring_problems(text)
        for line, problem in sorted(problems):
            print(f"{name}:{line}: {problem}")  # noqa: T201 (a command's output)
        found += len(problems)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
