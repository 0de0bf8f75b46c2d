"""Closed choices as a regular expression."""

from __future__ import annotations

import re

from triforge.rollout.choices import one_of


def test_the_expression_matches_exactly_the_choices() -> None:
    choices = ["go shelf", "take a.b (c)", r"say \boxed{1}"]
    expression = one_of(choices)
    assert expression is not None
    assert all(re.fullmatch(expression, choice) for choice in choices)
    assert not re.fullmatch(expression, "take aXb (c)")
