r"""Reading votes: the strict column of the published parsing vectors, and what they leave open."""

from __future__ import annotations

import pytest

from triforge.rollout.verdicts import ANSWERS, parse_vote


@pytest.mark.parametrize(
    ("inside", "vote"),
    [
        ("1", 1),
        ("+1", 1),
        ("-1", -1),
        ("\u22121", 0),  # a typographic minus
        ("score: 1", 0),
        (r"\text{-1}", 0),
        ("0", 0),
        ("1/8", 0),
        ("1, -1", 0),
        ("step 3: -1", 0),
    ],
)
def test_the_published_vectors(inside: str, vote: int) -> None:
    assert parse_vote(rf"It helps. \boxed{{{inside}}}") == vote


@pytest.mark.parametrize("text", ["", "1", "I vote +1.", "boxed{1}", r"\boxed 1"])
def test_without_a_box_there_is_no_vote(text: str) -> None:
    assert parse_vote(text) == 0


def test_of_two_boxes_the_last_counts() -> None:
    assert parse_vote(r"first \boxed{1}, on reflection \boxed{-1}") == -1
    assert parse_vote(r"\boxed{-1} no: \boxed{maybe}") == 0


def test_a_box_that_never_closes_is_no_vote_even_after_a_good_one() -> None:
    assert parse_vote(r"\boxed{1") == 0
    assert parse_vote(r"\boxed{1} or rather \boxed{-1") == 0
    assert parse_vote(r"\boxed{\text{1}") == 0


@pytest.mark.parametrize(
    "inside", ["11", "1.0", "--1", "++1", "1 1", "", " ", "①", "\uff11", "{1}"]
)
def test_nearly_right_is_wrong(inside: str) -> None:
    assert parse_vote(rf"\boxed{{{inside}}}") == 0


def test_white_space_in_the_box_does_not_matter() -> None:
    assert parse_vote("\\boxed{ -1\n}") == -1


def test_what_a_supervised_judge_is_taught_can_be_read() -> None:
    assert {vote: parse_vote(text) for vote, text in ANSWERS.items()} == {1: 1, -1: -1}


@pytest.mark.parametrize(
    "text",
    ["\\boxed{" * 400_000, "\\boxed{" + "{" * 400_000, "\\boxed{" + " " * 400_000, "\\boxed{1}}" * 400_000 + "x\\boxed{"],
    ids=["boxes", "braces", "blanks", "closed"],
)  # fmt: skip
def test_a_box_that_never_closes_is_looked_at_once(text: str) -> None:
    assert parse_vote(text) == 0
