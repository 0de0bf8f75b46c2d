"""The credit of a group as a trainer that reported it gets it: the loop's own, before any batch is chosen."""

from __future__ import annotations

from collections import Counter

from services.trainer.credit.credited import STALE, credit
from services.trainer.credit.judged_groups import judged_by, played_by
from services.trainer.credit.options import SampleOptions
from triforge.algorithms.advantages import row_means
from triforge.algorithms.filters import rewrite_direction
from triforge.algorithms.samples import Rollout
from triforge.types import CreditReport, JudgedGroup, RolloutCredit, StepCredit


def credit_report(group: JudgedGroup, options: SampleOptions, *, oldest: int) -> CreditReport:
    """Return the credit of a group; rollouts of a policy version below `oldest` are marked as stale."""
    task, made = group.played.group, credit(group, options)
    stale = STALE if min(played_by(group), default=oldest) < oldest else ""
    successes, measured = made.tally.successes, made.tally.measured
    return CreditReport(
        group_id=task.group_id,
        purpose=task.purpose,
        proposal_id=task.proposal_id,
        successes=successes,
        measured=measured,
        judge_version=max((version for _, version in judged_by(group)), default=None),
        direction=rewrite_direction(successes, measured, band=options.algorithm),
        rollouts=tuple(_credit_of(one, made.blocked or stale) for one in made.rollouts),
    )


def _credit_of(rollout: Rollout, reason: str) -> RolloutCredit:
    responses = [step.response for step in rollout.steps]
    (mean,) = row_means([[sample.reward for sample in responses]])
    common = Counter(sample.reason for sample in responses).most_common(1)
    dead = common[0][0] if common and all(sample.reason for sample in responses) else ""
    return RolloutCredit(
        reward=mean,
        reason=reason or dead,
        steps=tuple(
            StepCredit(
                votes=tuple(vote.value for vote in step.votes),
                score=step.score,
                reward=step.response.reward,
                advantage=step.response.advantage,
            )
            for step in rollout.steps
        ),
    )
