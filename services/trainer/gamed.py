"""What is said of a step after which the judge's alarm is on."""

from __future__ import annotations

from collections.abc import Mapping

_MEND = "to change: vote_weight = 'trust', which lowers their weight while this lasts, a smaller lam, or another judge_target"


def gamed(measures: Mapping[str, float]) -> str:
    """That the policy games the judge, by the measures of a step (`triforge.algorithms.gaming`); empty if not."""
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
