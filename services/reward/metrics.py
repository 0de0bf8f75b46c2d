"""What the reward service counts."""

from __future__ import annotations

from prometheus_client import Counter, Histogram

from triforge.types import StepVotes

VOTES = Counter("triforge_reward_votes_total", "Votes cast, by what was read from them.", ["value"])
JUDGED = Counter(
    "triforge_reward_judged_trajectories_total", "Trajectories judged, by result.", ["result"]
)
UNIT_TESTS = Counter(
    "triforge_reward_unit_tests_total", "Tests written, by whether they could be read.", ["value"]
)
UNIT_TESTED = Counter(
    "triforge_reward_unit_tested_groups_total", "Groups that got tests, by result.", ["result"]
)
JUDGE_SECONDS = Histogram(
    "triforge_reward_judge_seconds",
    "Seconds from taking up a trajectory to its votes, or a group to its tests.",
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 120, 300),
)

_NAMES = {1: "plus", -1: "minus", 0: "invalid"}


def count_votes(steps: tuple[StepVotes, ...]) -> None:
    """Count every vote of a trajectory."""
    for step in steps:
        for vote in step.votes:
            VOTES.labels(_NAMES[vote.value]).inc()
