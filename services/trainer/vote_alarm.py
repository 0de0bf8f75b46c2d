"""What is said of a step whose votes are not to be trusted: most of them cannot be read, or the judge's alarm is on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_MEND = "to change: vote_weight = 'trust', which lowers their weight while this lasts, a smaller lam, or another judge_target"
_UNREAD: Final = 0.5  # of the votes


def vote_alarm(measures: Mapping[str, float]) -> str:
    """What is wrong with the votes, by the measures of a step; empty if nothing is."""
    unread = measures.get("judge/invalid", 0.0)
    if unread > _UNREAD:
        return (
            f"{unread:.0%} of the votes could not be read, so they say nothing: a vote ends with \\boxed{{1}} or \\boxed{{-1}}; to "
            "change: a reward model that follows the prompt, or a larger models.reward.max_new_tokens; `triforge run show RUN --step N` "
            "shows what it says"
        )
    if not measures.get("judge/alarm"):
        return ""
    numbers = [
        f"{what} {measures[name]:+.1f}"
        for what, name in (
            ("agreement", "judge/alarm/agreement"),
            ("mean vote", "judge/alarm/votes"),
        )
        if name in measures
    ]
    errors = f" ({', '.join(numbers)} standard errors)" if numbers else ""
    return f"the judge is being gamed: over the latest groups its votes rise and agree less with outcomes{errors}; {_MEND}"
