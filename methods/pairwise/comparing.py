"""Comparisons of the rollouts of a group, and the scores that follow from them.

The rollouts stand in a ring. With `reward.votes` = m each is compared with the next m; it is shown first in these comparisons
and second in those of the m before it, so that a judge which prefers a place favours no rollout. A rollout's score is the
mean of its verdicts, +1 won, -1 lost, 0 unreadable, and each of its steps has this score.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Final

from services.reward.prompts import build_pair_prompt
from services.reward.scorers import demand_samples
from services.reward.scorers.votes import ask_what_fits, episode_of
from triforge.rollout.protocols import GenerateMany
from triforge.rollout.seeds import derive_seed
from triforge.rollout.verdicts import parse_vote
from triforge.sandbox.client import Sandbox
from triforge.types import (
    GenerateReply,
    GenerateRequest,
    GroupJudgement,
    JudgeTask,
    StepVotes,
    Trajectory,
    TrajectoryGroup,
    TrajectoryVotes,
)

_NAME: Final = "pairwise"

Replies = Mapping[tuple[str, str], GenerateReply]
"""The judge's answer on each pair of trajectories, named in the order in which they were shown."""


def pairs_of(rollouts: Sequence[Trajectory], most: int) -> list[tuple[Trajectory, Trajectory]]:
    """Return the pairs to compare, in the order in which they are shown; each rollout is first as often as second."""
    count = len(rollouts)
    ahead = range(1, min(most, count - 1) + 1)
    return [(one, rollouts[(i + d) % count]) for i, one in enumerate(rollouts) for d in ahead]


class Pairwise:
    """Scores by comparison; see `triforge.rollout.protocols.GroupScorer`."""

    @staticmethod
    async def ask(generate_many: GenerateMany, task: JudgeTask, played: TrajectoryGroup) -> Replies:
        """Sample one verdict a pair; pairs that are too long for the judge are left out."""
        pairs = pairs_of([t for t in played.trajectories if t.measured and t.steps], task.votes)
        if not pairs:
            return {}
        requests = [
            GenerateRequest(
                messages=build_pair_prompt(task.prompt, *(episode_of(t, task) for t in pair)),
                sampling=task.sampling.model_copy(update={"seed": derive_seed(task.seed, number)}),
                affinity=task.group_id,
            )
            for number, pair in enumerate(pairs)
        ]
        replies = await ask_what_fits(generate_many, task.group_id, requests)
        for reply in replies.values():
            demand_samples(reply, 1, f"verdicts on {task.group_id}")
        return {(pairs[n][0].id, pairs[n][1].id): reply for n, reply in replies.items()}

    @staticmethod
    async def judge(
        _sandbox: Sandbox | None, played: TrajectoryGroup, replies: Replies
    ) -> GroupJudgement:
        """Return the scores of the rollouts that were compared."""
        verdicts: dict[str, list[int]] = defaultdict(list)
        versions: dict[str, list[int]] = defaultdict(list)
        texts: dict[str, list[list[str]]] = defaultdict(list)
        for (first, second), reply in replies.items():
            (output,) = reply.outputs
            verdict = parse_vote(output.text)
            for name, own in ((first, verdict), (second, -verdict)):
                verdicts[name].append(own)
                versions[name] += [span.version for span in output.versions]
            texts[first].append([second, output.text])
        votes = tuple(
            TrajectoryVotes(
                trajectory_id=t.id,
                group_id=t.group_id,
                steps=tuple(
                    StepVotes(
                        step=step.index, prompt_ids=(), votes=(), score=fmean(verdicts[t.id]),
                        score_version=min(versions[t.id], default=None),
                        extra={_NAME: texts[t.id]} if step.index == 0 and texts[t.id] else {},
                    )
                    for step in t.steps
                ),
            )
            for t in played.trajectories
            if t.id in verdicts
        )  # fmt: skip
        return GroupJudgement(group_id=played.group.group_id, votes=votes)
