"""Rows of similar pages, from easy to hard. A rewrite is another page of the row, for the same seed.

A page has its utterance, drawn from the seed, and the verifier of it, so the two change together.
"""

from __future__ import annotations

from typing import Final

from environments.miniwob.page import Look, Problem, pages
from triforge.environments.kit import closed_menu, proofs
from triforge.rollout.protocols import RewriteMenu
from triforge.types import CheckResult, Direction

_ROWS: Final = (
    ("book-flight-nodelay", "book-flight"),
    ("choose-date-easy", "choose-date-medium", "choose-date"),
    ("click-button", "click-button-sequence"),
    ("click-checkboxes", "click-checkboxes-transfer", "click-checkboxes-soft", "click-checkboxes-large"),
    ("click-collapsible-nodelay", "click-collapsible", "click-collapsible-2"),
    ("click-dialog", "click-dialog-2"),
    ("click-menu", "click-menu-2"),
    ("click-pie-nodelay", "click-pie"),
    ("click-tab", "click-tab-2-easy", "click-tab-2-medium", "click-tab-2", "click-tab-2-hard"),
    ("click-test", "click-test-2", "click-test-transfer"),
    ("copy-paste", "copy-paste-2"),
    ("drag-single-shape", "drag-shapes", "drag-shapes-2"),
    ("email-inbox-delete", "email-inbox-reply", "email-inbox-noscroll", "email-inbox", "email-inbox-nl-turk"),
    ("enter-text", "enter-text-dynamic", "enter-text-2"),
    ("focus-text", "focus-text-2"),
    ("form-sequence", "form-sequence-2", "form-sequence-3"),
    ("highlight-text", "highlight-text-2"),
    ("login-user", "login-user-popup"),
    ("read-table", "read-table-2"),
    ("scroll-text", "scroll-text-2"),
    ("simple-arithmetic", "simple-algebra"),
    ("social-media", "social-media-some", "social-media-all"),
    ("use-autocomplete-nodelay", "use-autocomplete"),
    ("use-slider", "use-slider-2"),
)  # fmt: skip


def menu(problem: Problem, direction: Direction) -> RewriteMenu:
    """Return the other pages of the row: later ones are harder, earlier ones easier."""
    row = next((row for row in _ROWS if problem.task in row), (problem.task,))
    here = row.index(problem.task)
    near = row[here + 1 :] if direction == "harder" else row[:here]
    return closed_menu(
        f"Present page: {problem.task}, which says: {problem.utterance}",
        [{"task": name} for name in near if name in pages()],
    )


def check(before: Problem, after: Problem, announced: str, look: Look) -> list[CheckResult]:
    """Prove by the opened page: another one of the row, with the announced utterance, and not over."""
    row = next((row for row in _ROWS if before.task in row), ())
    other = after.model_copy(update={"task": before.task, "utterance": before.utterance})
    return proofs(
        ("differs", after.task != before.task),
        ("same_row", after.task in row and other == before, "of page; seed and horizon stay"),
        ("page_says", look.utterance == announced, f"the page says {look.utterance[:200]!r}"),
        ("not_satisfied_at_reset", not look.over),
    )
