"""CURE: the reward model writes unit tests, which programs reward; hidden tests reward programs (arXiv 2602.02488)."""

from __future__ import annotations

from methods.cure.options import CureOptions
from triforge.methods import Method, Scorer

METHOD = Method(
    name="cure",
    options=CureOptions,
    scorer=Scorer(
        casts_votes=False,
        trains_judge=True,
        by_group=True,
        one_player=True,
        needs_programs=True,
    ),
)
