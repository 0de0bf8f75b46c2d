"""The table of docs/environments.md, from what the families say of themselves (their attribute `about`)."""

from __future__ import annotations

from typing import Final

from scripts.gen_interfaces import between_marks, row
from triforge.environments.registry import About, about, known, load

MARKS: Final = (
    "<!-- families: written by scripts/gen_environments.py, run `make docs` -->",
    "<!-- /families -->",
)
_HEAD: Final = ("family", "what it is", "tasks", "licence", "extra", "steps/s", "trained on in", "page")  # fmt: skip


def environments_page() -> str:
    """docs/environments.md with its table written anew."""
    rows = [row(*_cells(name, facts)) for name in known() if (facts := about(load(name)))]
    return between_marks("environments.md", [row(*_HEAD), "|" + "---|" * len(_HEAD), *rows], MARKS)


def _cells(name: str, facts: About) -> tuple[str, ...]:
    link = f"[README](../environments/{name}/README.md)"
    speed = "" if facts.steps_per_s is None else f"{facts.steps_per_s:,.0f}"
    extra = f"`{facts.extra}`" if facts.extra else "none"
    return f"`{name}`", facts.what, facts.tasks, facts.licence, extra, speed, facts.papers, link
