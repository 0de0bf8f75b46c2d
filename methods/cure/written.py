"""The fields of CURE on the wire: the tests that the judge wrote for a group, and the programs that ran on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from triforge.types import JudgedGroup, Message

_NAME: Final = "cure"


class WrittenTest(Message):
    """A test. `input` and `output` are None when its text could not be parsed; then nothing was run.

    `accepts[j]`: the j-th program passed it.
    """

    input: str | None
    output: str | None
    accepts: tuple[bool, ...]

    @property
    def extra(self) -> dict[str, Any]:
        """The fields of the judge's text."""
        return {_NAME: self.model_dump(mode="json")}


def extra_of_group(programs: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a judgement: the ids of the trajectories whose programs ran, in the order of `accepts`."""
    return {_NAME: list(programs)}


def programs_of(group: JudgedGroup) -> list[Any]:
    """Return the ids of the trajectories whose programs ran on the tests."""
    fields = group.judgement.extra.get(_NAME) if group.judgement else None
    return fields if isinstance(fields, list) else []


def accepted(group: JudgedGroup) -> list[tuple[bool, ...] | None]:
    """Return, for each test, whether it accepts each measured program; None for a test that could not be parsed."""
    texts = group.judgement.texts if group.judgement else ()
    tests = [WrittenTest.model_validate(text.extra[_NAME]) for text in texts]
    return [None if test.input is None else test.accepts for test in tests]
