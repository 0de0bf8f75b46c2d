"""Puzzles of rows and letters: sorting, ciphers, brackets, truth."""

from __future__ import annotations

from random import Random

from environments.puzzles.puzzle import Puzzle, demand, row, same_places

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_CLOSING = {"(": ")", "[": "]", "{": "}"}


def order(rng: Random, level: int) -> Puzzle:
    """Sort `level + 3` numbers."""
    listed = rng.sample(range(10, 100 + 20 * level), level + 3)
    down = rng.random() < 0.5
    right = [str(n) for n in sorted(listed, reverse=down)]
    text = f"Sort these numbers, the {'largest' if down else 'smallest'} first: {row(listed)}"
    return Puzzle(text, row(right), same_places(right))


def cipher(rng: Random, level: int) -> Puzzle:
    """Read `level + 3` letters that were moved along the alphabet."""
    plain = "".join(rng.choice(_LETTERS) for _ in range(level + 3))
    by = rng.randint(1, min(25, 1 + level))
    hidden = "".join(_LETTERS[(_LETTERS.index(letter) + by) % 26] for letter in plain)
    places = same_places(plain)
    text = (
        f"Each letter of a word was replaced by the one {by} further in the alphabet (a follows z). It became {hidden}. "
        "What was the word?"
    )
    return Puzzle(text, plain, lambda given: places(row(given.strip().lower())))


def brackets(rng: Random, level: int) -> Puzzle:
    """Close the open brackets at the end of `level + 3` brackets."""
    stack, shown = list[str](), ""
    for place in range(level + 3):
        close = len(stack) > 1 and place < level + 2 and rng.random() < 0.4
        shown += _CLOSING[stack.pop()] if close else ""
        if not close:
            stack.append(rng.choice("([{"))
            shown += stack[-1]
    right = "".join(_CLOSING[bracket] for bracket in reversed(stack))
    places = same_places(right)
    return Puzzle(
        f"Which brackets are missing at the end of {shown} so that each is closed in its order?",
        right,
        lambda given: places(row(given.replace(" ", ""))),
    )


def truth(rng: Random, level: int) -> Puzzle:
    """Evaluate a formula of `level + 2` truth values."""
    shown = rng.choice(("true", "false"))
    value = shown == "true"
    for _ in range(level + 1):
        other = rng.random() < 0.5
        shown, value = rng.choice(
            (
                (f"({shown} and {str(other).lower()})", value and other),
                (f"({shown} or {str(other).lower()})", value or other),
                (f"(not {shown} or {str(other).lower()})", not value or other),
            )
        )
        if rng.random() < 0.5:
            shown, value = f"(not {shown})", not value
    right = str(value).lower()

    def verify(given: str) -> float:
        demand(given.lower() in ("true", "false"), "true or false")
        return float(given.lower() == right)

    return Puzzle(f"Is this true or false? {shown}", right, verify)
