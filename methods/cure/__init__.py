"""CURE: the reward model writes unit tests, which programs reward; hidden tests reward programs (arXiv 2602.02488)."""

from __future__ import annotations

from methods.cure.options import CureOptions
from triforge.methods import Method, Scorer

METHOD = Method(
    name="cure",
    options=CureOptions,
    loop="methods.cure.loop:Cure",
    scorer=Scorer(
        part="methods.cure.writing:UnitTests",
        credit="methods.cure.credit:ProgramCredit",
        casts_votes=False,
        trains_judge=True,
        by_group=True,
        one_player=True,
        needs_programs=True,
    ),
)
