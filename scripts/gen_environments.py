"""The table of docs/environments.md, from what the families say of themselves (their attribute `about`)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from triforge.environments.registry import About, about, known, load

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "environments.md"
BEGIN: Final = "<!-- families: written by scripts/gen_environments.py, run `make docs` -->"
END: Final = "<!-- /families -->"
_HEAD: Final = (
    "family",
    "what it is",
    "tasks",
    "licence",
    "extra",
    "steps/s",
    "trained on in",
    "page",
)


def environments_page() -> str:
    """docs/environments.md with its table written anew; everything else stays as it is."""
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin, f"{PAGE}: the mark {BEGIN} is missing"
    assert end, f"{PAGE}: the mark {END} is missing"
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def table() -> str:
    lines = ["| " + " | ".join(_HEAD) + " |", "|" + "---|" * len(_HEAD)]
    lines += [_row(name, said) for name in known() if (said := about(load(name)))]
    return "\n".join(lines)


def _row(name: str, said: About) -> str:
    link = f"[README](../environments/{name}/README.md)"
    speed = "" if said.steps_per_s is None else f"{said.steps_per_s:,.0f}"
    extra = f"`{said.extra}`" if said.extra else "none"
    cells = (f"`{name}`", said.what, said.tasks, said.licence, extra, speed, said.papers, link)
    return "| " + " | ".join(cells) + " |"
