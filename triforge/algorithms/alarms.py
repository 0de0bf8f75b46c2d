"""Alarms of a step from its measures, one sentence each, for the log, events and the dashboard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from triforge.algorithms import verdict

Letter = Literal["J", "C", "I", "K", "H"]
LETTERS: Final[Mapping[Letter, str]] = {
    "J": "judge",
    "C": "collapse",
    "I": "infrastructure",
    "K": "KL or entropy",
    "H": "held-out success",
}
"""The kinds of alarms."""

COLLAPSE: Final = {
    "spread": "the in-group spread of rewards is {:.0%} of what it was in the first steps",
    "gradient": "the gradient norm is {:.3g} times that of the steps before",
    "information": "mutual information of prompt and reasoning fell to {:.0%} of that in the first steps: reasoning has become a template",
    "success": "success is at most {:.0%} of what it was at least before",
    "held_out": "success on held-out tasks was at most {:.2%} in the last evaluations",
}
"""The rules of collapse, as `collapse/alarm/<rule>` with its number; `collapse/alarm` counts those that are on."""

KL: Final = "policy/kl_k3"
ENTROPY: Final = "policy/entropy_share"

READ: Final = (
    "judge/alarm", "judge/alarm/agreement", "judge/alarm/votes", "judge/alarm/praise", "judge/invalid", "infrastructure_failures", "trajectories",
    "failures/", "eval/failures/", "eval/sampled_episodes", "eval/greedy_episodes",
    *(f"collapse/alarm/{rule}" for rule in COLLAPSE), KL, ENTROPY, *verdict.READ,
)  # fmt: skip
"""The measures that alarms are made of; `name/` stands for all below it."""

# In 30 recorded runs that got better the KL was never above .25, in 285 (experiments/results) the entropy at .19 to 1.4 of the first
# step's; where success fell (`household`, rate 5e-4) the KL rose to .7 and more.
_KL_MOST: Final = 0.5  # nats a token
_ENTROPY_LEAST: Final = 0.1  # of the first step's
_ENTROPY_MOST: Final = 2.0
_LOST: Final = 0.05  # share of a step's rollouts
_UNREAD: Final = 0.5  # of the votes
_MEND: Final = "to change: vote_weight = 'trust', which lowers their weight while this lasts, a smaller lam, or another judge_target"


def alarms(measures: Mapping[str, float]) -> dict[Letter, str]:
    """Return the alarms of a step by their letter; empty if there is none."""
    found: dict[Letter, str] = {
        "J": _judge(measures),
        "C": collapse(measures),
        "I": _lost(measures),
        "K": _ran_off(measures),
        "H": _fallen(measures),
    }
    return {letter: sentence for letter, sentence in found.items() if sentence}


def collapse(measures: Mapping[str, float]) -> str:
    """Return a sentence for each rule of collapse that is on."""
    values = {rule: measures.get(f"collapse/alarm/{rule}") for rule in COLLAPSE}
    on = [COLLAPSE[rule].format(value) for rule, value in values.items() if value is not None]
    return f"the policy collapses: {'; '.join(on)}" if on else ""


def _judge(measures: Mapping[str, float]) -> str:
    """Votes that cannot be read, or a judge that is being gamed, as `triforge.algorithms.gaming` decided."""
    unread = measures.get("judge/invalid", 0.0)
    if unread > _UNREAD:
        return (
            f"{unread:.0%} of the votes could not be read, so they say nothing: a vote ends with \\boxed{{1}} or \\boxed{{-1}}; to "
            "change: a reward model that follows the prompt, or a larger models.reward.max_new_tokens; `triforge run show RUN --step N` "
            "shows what it says"
        )
    praise = measures.get("judge/alarm/praise")
    if praise is not None:
        return (
            f"the policy climbs the judge's errors: praise of wrong steps in failing rollouts rose by {praise:.1f} standard errors, success "
            "did not; while this lasts, votes weigh by the judge's competence on audited rollouts; to change: a larger reward.audit_share, "
            "or more updates of the judge"
        )
    if not measures.get("judge/alarm"):
        return ""
    names = {"agreement": "judge/alarm/agreement", "mean vote": "judge/alarm/votes"}
    by = [f"{what} {measures[name]:+.1f}" for what, name in names.items() if name in measures]
    numbers = f" ({', '.join(by)} standard errors)" if by else ""
    return f"the judge is being gamed: over the latest groups its votes rise and agree less with outcomes{numbers}; {_MEND}"


def _lost(measures: Mapping[str, float]) -> str:
    held_out = unmeasured(measures, "eval/failures/")
    measured = sum(measures.get(f"eval/{mode}_episodes", 0.0) for mode in ("sampled", "greedy"))
    evaluated = sum(held_out.values()) + measured
    parts = [
        f"{lost:.0f} of {of:.0f} {what} were not measured: {', '.join(f'{n:.0f} {why}' for why, n in named.items())}"
        for what, lost, of, named in (
            ("rollouts", measures.get("infrastructure_failures", 0.0), measures.get("trajectories", 0.0), unmeasured(measures)),
            ("held-out episodes", evaluated - measured, evaluated, held_out),
        )
        if lost > _LOST * of
    ]  # fmt: skip
    return "; ".join(parts)


def unmeasured(measures: Mapping[str, float], below: str = "failures/") -> dict[str, float]:
    """Return how many episodes were not measured, by what raised or by the kind of the error."""
    return {n.removeprefix(below): v for n, v in measures.items() if n.startswith(below)}


def _ran_off(measures: Mapping[str, float]) -> str:
    """Return a sentence if the policy is far from its anchor, or much more or less certain than at the beginning."""
    kl, entropy = measures.get(KL, 0.0), measures.get(ENTROPY, 1.0)
    on = (
        [f"its KL to the anchor is {kl:.2g} nats a token (alarm above {_KL_MOST})"]
        if kl > _KL_MOST
        else []
    )
    if not _ENTROPY_LEAST <= entropy <= _ENTROPY_MOST:
        on.append(
            f"its entropy is {entropy:.0%} of the first step's (alarm outside of {_ENTROPY_LEAST:.0%} to {_ENTROPY_MOST:.0%})"
        )
    return f"the policy ran off: {'; '.join(on)}" if on else ""


def _fallen(measures: Mapping[str, float]) -> str:
    """Return a sentence if held-out success is below that of the first evaluation, beyond chance."""
    change = verdict.change_of(measures)
    if change is None or change.word != "worse":
        return ""
    return f"held-out success fell: {change.shown}, of {change.pairs} episodes before and after"
