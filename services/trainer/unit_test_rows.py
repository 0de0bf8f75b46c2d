"""Tests that the reward model wrote for a group: on record, and as drafts of rows."""

from __future__ import annotations

from typing import Any

from services.trainer.rows import Draft, Limits, Span, unfit
from services.trainer.step_records import UNKNOWN, versions_of
from triforge.algorithms.unit_tests import UnitTestCredit
from triforge.types import JudgedGroup


def accepted(group: JudgedGroup) -> list[tuple[bool, ...] | None]:
    """One row a test: whether it accepts each measured program; None for a test that could not be parsed."""
    given = group.tests.tests if group.tests else ()
    return [None if test.input is None else test.accepts for test in given]


def unit_test_records(
    group: JudgedGroup, credit: UnitTestCredit, blocked: str | None
) -> dict[str, Any]:
    """The columns of `triforge.store.ledgers.SCHEMA` that a group's first record has beside those of its step.

    Args:
        group: as it was judged.
        credit: of its tests.
        blocked: why nothing of the group is trained on, if so.
    """
    if group.tests is None:
        return {"programs": [], "tests": []}
    tests = [
        {
            "input": test.input,
            "output": test.output,
            "accepts": list(test.accepts),
            "text": test.text,
            "ids": list(test.ids),
            "logprobs": list(test.logprobs),
            "versions": versions_of(test.versions, 0, len(test.ids)),
            "reward": credit.rewards[j],
            "advantage": credit.advantages[j],
            "weight": 0.0,
            "reason": blocked or credit.reasons[j] or "",
        }
        for j, test in enumerate(group.tests.tests)
    ]
    return {
        "judge_prompt_ids": list(group.tests.prompt_ids),
        "programs": list(group.tests.programs),
        "tests": tests,
    }


def unit_test_drafts(
    group: JudgedGroup, records: list[dict[str, Any]], version: int, limits: Limits
) -> list[tuple[Draft, dict[str, Any]]]:
    """One row a test that is trained on; the others' records learn the reason."""
    drafts: list[tuple[Draft, dict[str, Any]]] = []
    if group.tests is None:
        return drafts
    prompt, name = group.tests.prompt_ids, group.tests.group_id
    for j, (test, record) in enumerate(zip(group.tests.tests, records, strict=True)):
        length = len(prompt) + len(test.ids)
        record["reason"] = record["reason"] or unfit(record["versions"], version, length, limits)
        if record["reason"]:
            continue
        draft = Draft(
            f"{name}/tests/{j}", prompt + test.ids, (0.0,) * len(prompt) + test.logprobs,
            [Span(len(prompt), length, record["advantage"])],
            (*[UNKNOWN] * len(prompt), *record["versions"]), group.played.task.id, name, name,
        )  # fmt: skip
        drafts.append((draft, record))
    return drafts
