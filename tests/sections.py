"""Messages of tests from flat options, each put into the section that holds it."""

from __future__ import annotations

from typing import Any

from services.env_adapter.adaptation.settings import AdaptSettings
from triforge.algorithms.algorithm import resolve
from triforge.config import AdaptationSection, EnvAdapterSection, RewardSection
from triforge.types import GroupTask, Proposal

_PLAYED = {
    "max_steps": "max_steps",
    "deadline_s": "episode_deadline_s",
    "options": "options",
    "retries": "episode_retries",
    "admissible_only": "admissible_only",
    "played_by": "played_by",
    "strategy": "strategy",
}
_JUDGED = {
    "judge_prompt": "prompt",
    "judge_deadline_s": "deadline_s",
    "reward_kind": "kind",
    "reward_shows": "shows",
}


def flat_group(**given: Any) -> GroupTask:
    """A group whose sections have these values."""
    played = {_PLAYED[name]: given.pop(name) for name in list(given) if name in _PLAYED}
    judged = {_JUDGED[name]: given.pop(name) for name in list(given) if name in _JUDGED}
    return GroupTask(
        **given, env_adapter=EnvAdapterSection(**played), reward=RewardSection(**judged)
    )


def adapt_settings(**given: Any) -> AdaptSettings:
    """Settings of adaptation; options of the algorithm are those of `rlanything` but for these."""
    fields = {name: given.pop(name) for name in list(given) if name in AdaptSettings.model_fields}
    adaptation = {
        name: given.pop(name) for name in list(given) if name in AdaptationSection.model_fields
    }
    played = {_PLAYED[name]: given.pop(name) for name in list(given) if name in _PLAYED}
    usual = {
        "adaptation": AdaptationSection(**adaptation),
        "algorithm": resolve("rlanything", given),
        "env_adapter": EnvAdapterSection(**played),
    }
    return AdaptSettings(**usual | fields)


def plain_proposal(id: str, **given: Any) -> Proposal:
    """Return a pending rewrite that makes its task harder, with these fields."""
    usual: dict[str, Any] = {
        "pool_id": "pool", "slot": "s", "parent_id": "p", "candidate_id": None, "direction": "harder",
        "state": "pending", "run_id": "r", "step": 0, "trigger_accuracy": 1.0, "diagnosis": "", "prompt": "",
        "answer": "", "instruction_before": "",
    }  # fmt: skip
    return Proposal(**usual | {"id": id} | given)
