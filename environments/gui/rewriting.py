"""Rewriting tasks at a screen: another variant of the task, or a hint more or less.

A variant is an instruction with its verifier, so the two change together; variants stand from easy to hard, for example with further
subtasks. A hint belongs to its variant, a closed choice; where it has none the model writes one line, which is added to the
instruction.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Self, TypeVar

from pydantic import Field, model_validator

from environments.gui.evaluators import Evaluator
from triforge.environments.kit import Family, PlayT, Strict, closed_menu, proofs
from triforge.errors import InputError
from triforge.prompt_escaping import one_line, quote
from triforge.rollout.adapting import PROOFS
from triforge.rollout.protocols import RewriteMenu, TaskDraft
from triforge.types import CheckResult, Direction, Params, Task

LONGEST_HINT: Final = 300
PRESENT: Final = "present"
"""The name of the only variant of a task that brings none."""
FIELDS: Final = ("variant", "hint")
Known = tuple[str, dict[str, Any], str]
_SCHEMA: Final = json.dumps(
    {
        "type": "object",
        "properties": {"hint": {"type": "string", "minLength": 1, "maxLength": LONGEST_HINT}},
        "required": ["hint"],
        "additionalProperties": False,
    }
)
ASK: Final = "Write a hint: one sentence that helps to do just this and asks for nothing else."
_QUARTER: Final = 0.25
_LOOK: Final = 600  # characters of an instruction that the rewriter sees


class Variant(Strict):
    """An instruction, its verifier, and a hint if there is one; families add further fields."""

    name: str = Field(min_length=1, max_length=64, pattern=r"^[\w +-]+$")
    instruction: str = Field(min_length=1, max_length=8000)
    evaluator: Evaluator
    hint: str = Field(default="", max_length=LONGEST_HINT)

    def changes(self) -> dict[str, Any]:
        names = type(self).model_fields.keys() - {"name", "hint"}
        return {name: getattr(self, name) for name in names}


class ScreenTask(Strict):
    """The common fields of tasks at a screen. A task with variants is one of them, with its instruction and evaluator."""

    instruction: str = Field(min_length=1, max_length=8000)
    evaluator: Evaluator
    hint: str = Field(default="", max_length=LONGEST_HINT)
    variants: Sequence[Variant] = Field(default=(), max_length=16)

    @model_validator(mode="after")
    def _is_one_of_its_variants(self) -> Self:
        names = [variant.name for variant in self.variants]
        if len(set(names)) < len(names):
            raise ValueError(f"variants: two have one name: {', '.join(names)}")
        if self.variants and self.place is None:
            raise ValueError("variants: none has the instruction and the verifier of the task")
        return self

    @property
    def announced(self) -> str:
        return f"{self.instruction} Hint: {self.hint}" if self.hint else self.instruction

    @property
    def known(self) -> list[Known]:
        """Name, changed fields and hint of every variant; of a task without any, its own."""
        if self.variants:
            return [(one.name, one.changes(), one.hint) for one in self.variants]
        own = {"instruction": self.instruction, "evaluator": self.evaluator}
        return [(PRESENT, own, self.hint)]

    @property
    def place(self) -> int | None:
        """The index of the task in `known`."""
        return next((i for i, (_, changes, _) in enumerate(self.known) if self.has(changes)), None)

    def has(self, changes: Mapping[str, Any]) -> bool:
        return all(getattr(self, name) == value for name, value in changes.items())


TaskT = TypeVar("TaskT", bound=ScreenTask)


class ScreenFamily(Family[TaskT, PlayT]):
    """A family of such tasks; it proves that instruction and verifier belong together."""

    measured = PROOFS

    def instruction(self, given: TaskT) -> str:
        return given.announced

    def rewrite_menu(self, task: Task, direction: Direction) -> RewriteMenu:
        """Return closed choices; a hint in the model's words where an easier task is wanted and there are none."""
        given = self.read(task.params)
        lines = [f"Present task: {quote(given.announced, limit=_LOOK)}."]
        if choices := list(_choices(given, direction)):
            lines.append("Each variant has its own verifier; later ones are harder, a hint helps:")
            lines += [
                f"{name}: {quote(changes['instruction'], limit=_LOOK)}"
                for name, changes, _ in given.known
            ]
            return closed_menu("\n".join(lines), choices)
        if direction == "harder" or given.hint:
            return RewriteMenu(description=lines[0])
        lines.append(ASK)
        return RewriteMenu(description="\n".join(lines), json_schema=_SCHEMA)

    def apply_rewrite(self, task: Task, answer: dict[str, str]) -> TaskDraft:
        """Return the task with another variant's instruction and verifier, or with a hint."""
        given = self.read(task.params)
        if set(answer) == {"hint"}:
            hint = one_line(answer["hint"], limit=LONGEST_HINT)
            if not hint:
                raise InputError(
                    f"{self.name} rewrite: field hint: given none, expected a sentence"
                )
            return self.draft(given.model_copy(update={"hint": hint}))
        known = {name: (changes, hint) for name, changes, hint in given.known}
        if set(answer) != set(FIELDS) or answer["variant"] not in known:
            raise InputError(
                f"{self.name} rewrite: given {answer}, expected hint alone, or hint and variant, one of {', '.join(known)}"
            )
        changes, own = known[answer["variant"]]
        if answer["hint"] not in ("yes", "no") or (answer["hint"] == "yes" and not own):
            raise InputError(
                f"{self.name} rewrite: field hint: given {answer['hint']!r}, expected no, or yes where the variant has one"
            )
        update = {**changes, "hint": own if answer["hint"] == "yes" else ""}
        return self.draft(given.model_copy(update=update))

    def check_rewrite(self, parent: Task, candidate: TaskDraft) -> list[CheckResult]:
        """Prove that only variant and hint differ, and that the verifier belongs to the announced instruction."""
        before = self.read(parent.params)
        try:
            after = self.read(candidate.params)
        except InputError as error:
            return proofs(("well_formed", False, error.detail))
        place = before.place or 0
        back = after.model_copy(update={**before.known[place][1], "hint": before.hint})
        belongs = any(after.has(changes) for _, changes, _ in before.known)
        announces = candidate.instruction == after.announced
        return proofs(
            ("well_formed", True),
            ("differs", after != before),
            ("same_start", back == before, "all but variant and hint stays"),
            ("verifier_belongs", belongs and announces, "to the instruction, which is announced"),
        )

    def drift(self, root: Params, candidate: Params) -> float:
        """Return the share of the variants between two tasks, and a quarter for a hint; 1 between tasks that share none."""
        one, two = self.read(root), self.read(candidate)
        places = [i for i, (_, changes, _) in enumerate(one.known) if two.has(changes)]
        if one.place is None or not places:
            return 1.0
        way = abs(one.place - places[0]) / len(one.known)
        return min(1.0, way + _QUARTER * (one.hint != two.hint))


def _choices(given: ScreenTask, direction: Direction) -> Iterator[dict[str, str]]:
    """Yield, for harder, later variants, or this one without its hint; for easier, earlier ones, with or without theirs, or this one with it."""
    here = given.place or 0
    for index, (name, _, hint) in enumerate(given.known):
        if direction == "harder":
            if index > here or (index == here and given.hint):
                yield {"variant": name, "hint": "no"}
            continue
        if index < here:
            yield {"variant": name, "hint": "no"}
        if hint and (index < here or (index == here and not given.hint)):
            yield {"variant": name, "hint": "yes"}
