"""Which answer becomes the candidate: the first one that every check lets through, all checks on record."""

from __future__ import annotations

from services.env_adapter.adaptation.checks import identity, screen
from services.env_adapter.adaptation.rewriter import Choices, line_of
from triforge.messages import Task
from triforge.rollout.protocols import EnvironmentFamily

RED, BLUE, GREEN = (
    line_of({"shelf": shelf, "colour": colour})
    for shelf, colour in (("1", "red"), ("2", "blue"), ("3", "green"))
)
BROKEN, UNKNOWN = "shelf: 9, colour: red", "shelf: 4, colour: mauve"
OFFERED = Choices(
    {
        line: dict(part.split(": ") for part in line.split(", "))
        for line in (RED, BLUE, GREEN, BROKEN, UNKNOWN)
    }
)
PARENT = Task(
    id="t",
    pool_id="p",
    slot="t",
    family="shelf",
    instruction="Put a red ball on shelf 1.",
    params={"shelf": 1, "colour": "red"},
)
HAD = {identity(PARENT.params), identity({"shelf": 2, "colour": "blue"})}


def failures(family: EnvironmentFamily, *answers: str) -> list[tuple[str, str]]:
    """(check, the answer that failed it) of a screening that found nothing."""
    found = screen(family, PARENT, answers, OFFERED, HAD)
    assert found.draft is None
    return [(check.name, check.detail.split(":")[0]) for check in found.checks if not check.passed]


def test_the_first_answer_that_passes_every_check_is_taken(
    shelf_family: EnvironmentFamily,
) -> None:
    found = screen(shelf_family, PARENT, [BROKEN, GREEN, RED], OFFERED, HAD)
    assert found.draft is not None
    assert found.draft.instruction == "Put a green ball on shelf 3."
    said = [(check.name, check.passed, check.detail.split(":")[0]) for check in found.checks]
    assert said == [
        ("differs", True, "answer 1"),
        ("solvable", False, "answer 1"),
        ("new_in_slot", True, "answer 1"),
        ("differs", True, "answer 2"),
        ("solvable", True, "answer 2"),
        ("new_in_slot", True, "answer 2"),
    ]


def test_an_unsolvable_task_is_no_candidate(shelf_family: EnvironmentFamily) -> None:
    assert failures(shelf_family, BROKEN) == [("solvable", "answer 1")]


def test_the_task_itself_and_what_the_slot_has_had_are_no_candidates(
    shelf_family: EnvironmentFamily,
) -> None:
    assert failures(shelf_family, RED, BLUE) == [
        ("differs", "answer 1"),
        ("new_in_slot", "answer 1"),
        ("new_in_slot", "answer 2"),
    ]


def test_what_cannot_be_read_or_applied_is_on_record(shelf_family: EnvironmentFamily) -> None:
    assert failures(shelf_family, "nonsense", UNKNOWN) == [
        ("readable", "answer 1"),
        ("applicable", "answer 2"),
    ]


def test_an_answer_given_twice_is_checked_once(shelf_family: EnvironmentFamily) -> None:
    assert failures(shelf_family, "nonsense", "nonsense") == [("readable", "answer 1")]


def test_no_answer_is_no_candidate(shelf_family: EnvironmentFamily) -> None:
    assert failures(shelf_family) == []
