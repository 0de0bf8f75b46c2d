"""Seeded tasks about files and settings, each with the command that solves it."""

from __future__ import annotations

import random
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from pydantic import JsonValue

from environments.desktop.tasks import GeneratorOptions, Sort
from triforge.environments.kit import parse_model
from triforge.errors import InputError
from triforge.types import Params

_NAMES: Final = (
    "notes", "todo", "report", "draft", "recipe", "letter", "budget", "travel", "garden", "music",
)  # fmt: skip
_FOLDERS: Final = ("archive", "inbox", "photos", "work", "old")
_WORDS: Final = (
    "apple", "river", "stone", "cloud", "maple", "copper", "violet", "harbor", "lantern", "saddle",
)  # fmt: skip
_SETTINGS: Final = ("volume", "brightness", "timeout", "columns", "contrast")
_EASY: Final[tuple[Sort, ...]] = ("create", "write", "rename", "move")  # sorts of further subtasks
_HINTS: Final[dict[Sort, str]] = {
    "create": "touch", "write": "echo and >", "rename": "mv", "move": "mv", "delete": "rm",
    "setting": "sed -i",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Made:
    instruction: str
    evaluator: dict[str, JsonValue]
    solution: str
    files: dict[str, str] = field(default_factory=dict)
    folders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Draw:
    """The arguments of a maker: chance, two unused names, a text, and another file (or none)."""

    rng: random.Random
    first: str
    second: str
    text: str
    other: str


def generate(count: int, seed: int, options: Params) -> list[Params]:
    """Make `count` tasks; task i depends on the seed, i and the options only."""
    wanted = parse_model(GeneratorOptions, options, "desktop options")
    low, high = wanted.files
    most = len(_NAMES) - 2 * (1 + wanted.spare)  # a subtask has two names of its own
    if not 0 <= low <= high <= most:
        raise InputError(
            f"desktop options: field files: [lowest, highest] of 0 to {most} with {wanted.spare} spare subtasks (field spare), "
            f"given {wanted.files}"
        )
    return [_generate(random.Random(f"desktop {seed} {i}"), wanted) for i in range(count)]  # noqa: S311


def _generate(rng: random.Random, wanted: GeneratorOptions) -> Params:
    sort = rng.choice(wanted.sorts)
    names = [f"{name}.txt" for name in rng.sample(_NAMES, len(_NAMES))]
    lying = {name: _text(rng) for name in names[2 : 2 + rng.randint(*wanted.files)]}
    made = [_MAKERS[sort](_Draw(rng, names[0], names[1], _text(rng), next(iter(lying), "")))]
    sorts = [sort]
    task_id = f"{sort}-{rng.randrange(16**8):08x}"
    for n in range(wanted.spare):
        sorts.append(rng.choice(_EASY))
        first, second = names[-2 * n - 1], names[-2 * n - 2]
        made.append(_MAKERS[sorts[-1]](_Draw(rng, first, second, _text(rng), "")))
    files = {**lying, **{path: text for one in made for path, text in one.files.items()}}
    config: list[JsonValue] = [
        {"type": "write_file", "parameters": {"path": path, "content": text}}
        for path, text in files.items()
    ]
    folders = dict.fromkeys(path for one in made for path in one.folders)
    config += [{"type": "make_folder", "parameters": {"path": path}} for path in folders]
    variants = [_together(made[:n], sorts[:n]) for n in range(1, len(made) + 1)]
    chosen = {name: variants[0][name] for name in ("instruction", "evaluator", "solution")}
    return {
        "id": task_id,
        "config": config,
        "horizon": wanted.horizon,
        **chosen,
        "variants": [*variants],
    }


def _together(made: Sequence[_Made], sorts: Sequence[Sort]) -> dict[str, JsonValue]:
    """Return the variant with all of these subtasks, one after the other."""
    first, *more = [one.instruction for one in made]
    then = [f"Then {text[0].lower()}{text[1:]}" for text in more]
    every: dict[str, JsonValue] = {"conj": "and"}
    for name in ("func", "result", "expected"):
        parts = [one.evaluator[name] for one in made]
        every[name] = [
            item for part in parts for item in (part if isinstance(part, list) else [part])
        ]
    commands = dict.fromkeys(_HINTS[sort] for sort in sorts)
    return {
        "name": f"{len(made)} subtask{'s' * (len(made) > 1)}",
        "instruction": " ".join([first, *then]),
        "evaluator": made[0].evaluator if len(made) == 1 else every,
        "solution": [one.solution for one in made],
        "hint": f"The terminal knows the command{'s' * (len(commands) > 1)} {', '.join(commands)}.",
    }


def _text(rng: random.Random) -> str:
    return " ".join(rng.sample(_WORDS, 3)) + "\n"


def _create(draw: _Draw) -> _Made:
    return _Made(
        f"Create an empty file called {draw.first} in your home folder.",
        _one("compare_text_file", {"type": "file", "path": draw.first}, _as_text("")),
        f"touch {draw.first}",
    )


def _write(draw: _Draw) -> _Made:
    words = draw.text.strip()
    return _Made(
        f'Write the words "{words}" into a new file called {draw.first} in your home folder.',
        _one("compare_text_file", {"type": "file", "path": draw.first}, _as_text(draw.text)),
        f"echo {words} > {draw.first}",
    )


def _rename(draw: _Draw) -> _Made:
    return _Made(
        f"Rename the file {draw.first} to {draw.second}.",
        _moved(draw.first, draw.second, draw.text),
        f"mv {draw.first} {draw.second}",
        {draw.first: draw.text},
    )


def _move(draw: _Draw) -> _Made:
    folder = draw.rng.choice(_FOLDERS)
    return _Made(
        f"Move the file {draw.first} into the folder {folder}.",
        _moved(draw.first, f"{folder}/{draw.first}", draw.text),
        f"mv {draw.first} {folder}/",
        {draw.first: draw.text},
        (folder,),
    )


def _delete(draw: _Draw) -> _Made:
    kept = [(_exists(draw.other), _rule("yes"))] if draw.other else []
    pairs = [(_exists(draw.first), _rule("no")), *kept]
    return _Made(
        f"Delete the file {draw.first} and leave everything else as it is.",
        {
            "func": ["exact_match"] * len(pairs),
            "conj": "and",
            "result": [result for result, _ in pairs],
            "expected": [expected for _, expected in pairs],
        },
        f"rm {draw.first}",
        {draw.first: draw.text},
    )


def _setting(draw: _Draw) -> _Made:
    names = draw.rng.sample(_SETTINGS, 3)
    old, new = draw.rng.sample(range(1, 100), 2)
    values = {name: draw.rng.randint(1, 99) for name in names} | {names[0]: old}
    lines = "".join(f"{name}={values[name]}\n" for name in sorted(names))
    result: JsonValue = {"type": "setting", "path": "settings.ini", "name": names[0]}
    edit = f"s/^{names[0]}=.*/{names[0]}={new}/"
    return _Made(
        f"In the file settings.ini, change {names[0]} from {old} to {new}.",
        _one("exact_match", result, _rule(str(new))),
        f"sed -i {shlex.quote(edit)} settings.ini",
        {"settings.ini": lines},
    )


_MAKERS: Final[dict[Sort, Callable[[_Draw], _Made]]] = {
    "create": _create, "write": _write, "rename": _rename, "move": _move, "delete": _delete,
    "setting": _setting,
}  # fmt: skip


def _one(func: str, result: JsonValue, expected: JsonValue) -> dict[str, JsonValue]:
    return {"func": func, "result": result, "expected": expected}


def _moved(old: str, new: str, text: str) -> dict[str, JsonValue]:
    """Return the verifier of a text under the new name and nothing under the old one."""
    return {
        "func": ["compare_text_file", "exact_match"],
        "conj": "and",
        "result": [{"type": "file", "path": new}, _exists(old)],
        "expected": [_as_text(text), _rule("no")],
    }


def _exists(path: str) -> JsonValue:
    return {"type": "exists", "path": path}


def _rule(value: str) -> JsonValue:
    return {"type": "rule", "rules": {"expected": value}}


def _as_text(text: str) -> JsonValue:
    return {"type": "text", "text": text}
