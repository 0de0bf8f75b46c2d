"""Credit of programs and of the tests that were written for them."""

from __future__ import annotations

from collections.abc import Sequence

from methods.cure.arithmetic import credit_tests, program_rules
from methods.cure.written import accepted, programs_of
from triforge.algorithms.algorithm import Algorithm
from triforge.algorithms.samples import Sample
from triforge.types import JudgedGroup, Trajectory


class ProgramCredit:
    """Hidden tests reward programs; programs reward tests."""

    @staticmethod
    def score(trajectory: Trajectory) -> float | None:
        """Return the share of hidden tests that a program passes."""
        return trajectory.outcome.passed

    @staticmethod
    def rules(algorithm: Algorithm) -> Algorithm:
        """Return the algorithm by which programs are credited."""
        return program_rules(algorithm)

    @staticmethod
    def credit(texts: Sequence[Sample], group: JudgedGroup, algorithm: Algorithm) -> None:
        """Annotate the tests of a group."""
        outcomes = [trajectory.outcome.value for trajectory in group.played.trajectories]
        credit_tests(texts, outcomes, accepted(group), algorithm=algorithm)

    @staticmethod
    def note(group: JudgedGroup, trajectory: Trajectory) -> str:
        """Return how many of the readable tests a program passes; empty if it ran on none of them."""
        rows = [row for row in accepted(group) if row is not None]
        programs = programs_of(group)
        if not rows or trajectory.id not in programs:
            return ""
        passed = sum(row[programs.index(trajectory.id)] for row in rows)
        return f"{passed} of {len(rows)} tests that a judge wrote"
