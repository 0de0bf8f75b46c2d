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


@pytest.mark.parametrize(
    ("text", "vote"),
    [
        ("", 0),
        ("I vote +1.", 0),
        (r"\boxed 1", 0),
        (r"first \boxed{1}, on reflection \boxed{-1}", -1),
        (r"\boxed{-1} no: \boxed{maybe}", 0),
        (r"\boxed{1} or rather \boxed{-1", 0),  # a box that never closes
        (r"\boxed{\text{1}", 0),
        ("\\boxed{ -1\n}", -1),
        *(
            (rf"\boxed{{{near}}}", 0)
            for near in ("11", "1.0", "--1", "1 1", "", "①", "\uff11", "{1}")
        ),
    ],
)
def test_the_last_box_counts_if_it_holds_nothing_but_a_vote(text: str, vote: int) -> None:
    assert parse_vote(text) == vote


def test_what_a_supervised_judge_is_taught_can_be_read() -> None:
    assert {vote: parse_vote(text) for vote, text in ANSWERS.items()} == {1: 1, -1: -1}


@pytest.mark.parametrize(
    "text",
    ["\\boxed{" * 400_000, "\\boxed{" + "{" * 400_000, "\\boxed{" + " " * 400_000, "\\boxed{1}}" * 400_000 + "x\\boxed{"],
    ids=["boxes", "braces", "blanks", "closed"],
)  # fmt: skip
def test_a_box_that_never_closes_is_looked_at_once(text: str) -> None:
    assert parse_vote(text) == 0
