"""Operations of generated problems: steps that change some data, and endings that print an answer.

Every operation has a sentence for the statement, a line for the reference solution, and a function that makes the tests. The
sandbox runs the lines on the tests, so a slip in one of the two is found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from random import Random
from typing import Any, Final, Literal

Kind = Literal["numbers", "words", "grid"]
Rows = list[list[str]]


@dataclass(frozen=True, slots=True)
class Operation:
    """A step or an ending. `line` is Python over `data` and, for endings, `answer`; `arguments` are its choices of `{n}`."""

    sentence: str
    line: str
    function: Callable[[Any, int], Any]
    arguments: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class World:
    """One kind of data: its description, the lines that read it, and the functions that draw and write it."""

    description: str
    reads: tuple[str, ...]
    steps: Mapping[str, Operation]
    finals: Mapping[str, Operation]
    draw: Callable[[Random, int], Any]
    written: Callable[[Any], str]


def _unique(data: list[Any], _: int) -> list[Any]:
    return list(dict.fromkeys(data))


def _turned(data: list[Any], _: int) -> list[Any]:
    return data[::-1]


NUMBERS: Final = World(
    description="a list of whole numbers: one line, separated by blanks, which may be empty",
    reads=("import sys", "data = [int(word) for word in sys.stdin.read().split()]"),
    steps={
        "even": Operation("Keep only the even numbers.", "data = [x for x in data if x % 2 == 0]", lambda d, _: [x for x in d if not x & 1]),
        "odd": Operation("Keep only the odd numbers.", "data = [x for x in data if x % 2 == 1]", lambda d, _: [x for x in d if x & 1]),
        "reverse": Operation("Reverse the order of the list.", "data = data[::-1]", _turned),
        "sort": Operation("Sort the list from small to large.", "data = sorted(data)", lambda d, _: sorted(d)),
        "unique": Operation("Of equal numbers keep only the first.", "data = [x for i, x in enumerate(data) if x not in data[:i]]", _unique),
        "add": Operation("Add {n} to every number.", "data = [x + {n} for x in data]", lambda d, n: [x + n for x in d], (1, 2, 5)),
        "drop_multiples": Operation("Drop the multiples of {n}.", "data = [x for x in data if x % {n} != 0]", lambda d, n: [x for x in d if x % n], (3, 4, 5)),
        "remainder": Operation("Replace every number by its remainder when divided by {n}, which lies between 0 and {n} - 1.", "data = [x % {n} for x in data]", lambda d, n: [x - n * (x // n) for x in d], (4, 6, 7)),
        "shift": Operation("Move the first number to the end of the list.", "data = data[1:] + data[:1]", lambda d, _: [*d[1:], *d[:1]]),
        "square": Operation("Replace every number by its square.", "data = [x * x for x in data]", lambda d, _: [x**2 for x in d]),
        "differences": Operation("Replace the list by the differences of neighbours: each number minus the one before it.", "data = [data[i] - data[i - 1] for i in range(1, len(data))]", lambda d, _: [b - a for a, b in pairwise(d)]),
        "totals": Operation("Replace every number by the sum of all numbers up to and including it.", "data = [sum(data[: i + 1]) for i in range(len(data))]", lambda d, _: list(accumulate(d))),
    },
    finals={
        "sum": Operation("print the sum of the numbers.", "answer = sum(data)", lambda d, _: sum(d)),
        "count": Operation("print how many numbers there are.", "answer = len(data)", lambda d, _: len(d)),
        "largest": Operation("print the largest number, or none if there is no number.", 'answer = max(data) if data else "none"', lambda d, _: max(d, default="none")),
        "list": Operation("print the numbers separated by blanks, or none if there is no number.", 'answer = " ".join(map(str, data)) or "none"', lambda d, _: " ".join(str(x) for x in d) if d else "none"),
        "alternating": Operation("print the first number minus the second plus the third and so on, in turn.", "answer = sum(data[::2]) - sum(data[1::2])", lambda d, _: sum(x * (-1) ** i for i, x in enumerate(d))),
    },
    draw=lambda rng, size: [rng.randint(-20, 20) if rng.random() < 0.5 else rng.randint(0, 9) for _ in range(size)],
    written=lambda data: " ".join(map(str, data)) + "\n",
)  # fmt: skip

WORDS: Final = World(
    description="some words of small letters: one line, separated by blanks, which may be empty",
    reads=("import sys", "data = sys.stdin.read().split()"),
    steps={
        "reverse": Operation("Reverse the order of the words.", "data = data[::-1]", _turned),
        "sort": Operation("Sort the words alphabetically.", "data = sorted(data)", lambda d, _: sorted(d)),
        "unique": Operation("Of equal words keep only the first.", "data = list(dict.fromkeys(data))", _unique),
        "backwards": Operation("Write every word backwards.", "data = [word[::-1] for word in data]", lambda d, _: ["".join(reversed(w)) for w in d]),
        "drop_short": Operation("Drop the words with fewer than {n} letters.", "data = [word for word in data if len(word) >= {n}]", lambda d, n: [w for w in d if not len(w) < n], (3, 4)),
        "by_length": Operation("Sort the words by their length, the shortest first; words of equal length keep their order.", "data = sorted(data, key=len)", lambda d, _: [w for n in sorted({len(w) for w in d}) for w in d if len(w) == n]),
        "first_last": Operation("In every word swap the first and the last letter; a word of one letter stays.", "data = [w[-1] + w[1:-1] + w[0] if len(w) > 1 else w for w in data]", lambda d, _: [w if len(w) == 1 else f"{w[-1]}{w[1:-1]}{w[0]}" for w in d]),
        "no_vowels": Operation("Delete the letters a, e, i, o and u; words of which nothing is left disappear.", 'data = [w for w in ("".join(c for c in word if c not in "aeiou") for word in data) if w]', lambda d, _: list(filter(None, (w.translate(str.maketrans("", "", "aeiou")) for w in d)))),
        "every_other": Operation("Keep the first word, the third, the fifth and so on.", "data = data[::2]", lambda d, _: [w for i, w in enumerate(d) if i % 2 == 0]),
    },
    finals={
        "count": Operation("print how many words there are.", "answer = len(data)", lambda d, _: len(d)),
        "letters": Operation("print how many letters the words have together.", "answer = sum(map(len, data))", lambda d, _: len("".join(d))),
        "line": Operation("print the words separated by blanks, or none if there is no word.", 'answer = " ".join(data) or "none"', lambda d, _: " ".join(d) if d else "none"),
        "initials": Operation("print the first letters of all words as one word, or none if there is no word.", 'answer = "".join(word[0] for word in data) or "none"', lambda d, _: "".join(w[:1] for w in d) if d else "none"),
        "longest": Operation("print the longest word (of several the first), or none if there is no word.", 'answer = max(data, key=len) if data else "none"', lambda d, _: max(d, key=len, default="none")),
    },
    draw=lambda rng, size: ["".join(rng.choice("aeioubdst") for _ in range(rng.randint(1, 6))) for _ in range(size)] + ["bad", "bad"] * (size > 6),
    written=lambda data: " ".join(data) + "\n",
)  # fmt: skip


def _fall(rows: Rows, _: int) -> Rows:
    columns = [sorted(column, key="#".find) for column in zip(*rows, strict=True)]
    return [list(row) for row in zip(*columns, strict=True)]


def _regions(rows: Rows) -> list[int]:
    """Return the sizes of the groups of # that touch up, down, left or right."""
    left = {(i, j) for i, row in enumerate(rows) for j, cell in enumerate(row) if cell == "#"}
    sizes = []
    while left:
        todo, size = [left.pop()], 0
        while todo:
            i, j = todo.pop()
            size += 1
            near = {(i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1)} & left
            left -= near
            todo += near
        sizes.append(size)
    return sizes


_FLOOD: Final = """\
seen, sizes = set(), []
for i in range(len(data)):
    for j in range(len(data[0])):
        if data[i][j] == "#" and (i, j) not in seen:
            seen.add((i, j)); queue = [(i, j)]
            for a, b in queue:
                for c, d in ((a + 1, b), (a - 1, b), (a, b + 1), (a, b - 1)):
                    if 0 <= c < len(data) and 0 <= d < len(data[0]) and data[c][d] == "#" and (c, d) not in seen:
                        seen.add((c, d)); queue.append((c, d))
            sizes.append(len(queue))
"""

GRID: Final = World(
    description="a picture: lines of equal length that consist of # and .",
    reads=("import sys", "data = [list(line) for line in sys.stdin.read().split()]"),
    steps={
        "mirror": Operation("Mirror the picture: left becomes right.", "data = [row[::-1] for row in data]", lambda d, _: [list(reversed(row)) for row in d]),
        "flip": Operation("Turn the picture upside down: the last line becomes the first.", "data = data[::-1]", _turned),
        "transpose": Operation("Swap lines and columns: the first line becomes the first column.", "data = [[row[j] for row in data] for j in range(len(data[0]))]", lambda d, _: [list(row) for row in zip(*d, strict=True)]),
        "invert": Operation("Replace every # by a . and every . by a #.", 'data = [["." if c == "#" else "#" for c in row] for row in data]', lambda d, _: [[{"#": ".", ".": "#"}[c] for c in row] for row in d]),
        "fall": Operation("Let every # fall down in its column until it meets the ground or another #.", 'columns = [[row[j] for row in data] for j in range(len(data[0]))]; data = [["#" if i >= len(data) - column.count("#") else "." for column in columns] for i in range(len(data))]', _fall),
        "down": Operation("Move the last line to the top.", "data = data[-1:] + data[:-1]", lambda d, _: [d[-1], *d[:-1]]),
        "right": Operation("Move the last column to the front.", "data = [row[-1:] + row[:-1] for row in data]", lambda d, _: [[row[-1], *row[:-1]] for row in d]),
        "crop": Operation("Take away the first line.", "data = data[1:]", lambda d, _: d[1:]),
    },
    finals={
        "count": Operation("print how many # there are.", 'answer = sum(row.count("#") for row in data)', lambda d, _: sum(c == "#" for row in d for c in row)),
        "picture": Operation("print the picture.", 'answer = "\\n".join("".join(row) for row in data)', lambda d, _: "\n".join(map("".join, d))),
        "first_line": Operation("print how many # stand in the first line.", 'answer = data[0].count("#")', lambda d, _: sum(c == "#" for c in d[0])),
        "regions": Operation("print how many groups of # there are; two # belong together when they touch up, down, left or right.", _FLOOD + "answer = len(sizes)", lambda d, _: len(_regions(d))),
        "largest": Operation("print the size of the largest group of # (0 if there is none); two # belong together when they touch up, down, left or right.", _FLOOD + "answer = max(sizes, default=0)", lambda d, _: max(_regions(d), default=0)),
    },
    draw=lambda rng, size: [[rng.choice("#..") for _ in range(max(3, size // 2 + 2))] for _ in range(max(4, size))],
    written=lambda data: "".join("".join(row) + "\n" for row in data),
)  # fmt: skip

WORLDS: Final[Mapping[Kind, World]] = {"numbers": NUMBERS, "words": WORDS, "grid": GRID}


def choices(table: Mapping[str, Operation]) -> list[str]:
    """Return every operation with each of its arguments, as in "add:2", in the order of the table: easy ones first."""
    return [
        f"{name}:{n}" if operation.arguments else name
        for name, operation in table.items()
        for n in operation.arguments or (0,)
    ]


def resolved(table: Mapping[str, Operation], choice: str) -> tuple[Operation, int]:
    """Return the operation of a choice, and its argument (0 where it has none)."""
    name, _, argument = choice.partition(":")
    operation = table[name]
    given = int(argument) if argument.isdecimal() else 0
    if choice not in choices({name: operation}):
        raise KeyError(choice)
    return operation, given
