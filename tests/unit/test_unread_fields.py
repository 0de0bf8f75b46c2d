"""Fields of a document that nothing would read are refused with the reason; what stands at its default never is."""

from pathlib import Path
from typing import Any

import pytest

from triforge.config import load, parse
from triforge.errors import ConfigError

GAE = {"preset": "ppo", "overrides": {"job": "critic"}}


@pytest.mark.parametrize(
    ("field", "document"),
    [
        ("trainer.policy.lora_alpha", {"trainer": {"policy": {"lora_alpha": 64}}}),
        ("trainer.reward.lora_targets", {"trainer": {"reward": {"lora_targets": ["q_proj"]}}}),
        ("trainer.policy.schedule_updates", {"trainer": {"policy": {"schedule_updates": 100}}}),
        (
            "trainer.critic.alone_steps",
            {"trainer": {"critic": {"alone_steps": 2}}, "algorithm": GAE},
        ),
        ("methods.envrl.history", {"methods": {"envrl": {"history": 4}}}),
        ("methods.rlve", {"methods": {"rlve": {"levels": 2}}}),
        ("report.wandb_mode", {"report": {"wandb_mode": "offline"}}),
    ],
)
def test_unread_field_is_refused(field: str, document: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: given"):
        parse(document)


@pytest.mark.parametrize(
    "document",
    [
        {"trainer": {"policy": {"lora_rank": 4, "lora_alpha": 64, "lora_targets": ["q_proj"]}}},
        {"trainer": {"policy": {"schedule": "cosine", "schedule_updates": 9, "final_share": 0.1}}},
        {"trainer": {"policy": {"lora_alpha": 32, "lora_targets": [], "final_share": 0.0}}},
        {"trainer": {"critic": {"learning_rate": 1e-4}}, "algorithm": GAE},
        {"methods": {"envrl": {"measure": True, "prompt": "terse"}}},
        {"report": {"wandb_project": "p", "wandb_mode": "offline"}},
        {"trainer": {"reward": {"learning_rate": 1e-4}}, "algorithm": {"preset": "grpo"}},
    ],
)
def test_what_is_read_or_says_the_default_passes(document: dict[str, Any]) -> None:
    found = parse(document)
    assert parse(found.model_dump(mode="json")) == found


CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize(
    "path",
    sorted([*CONFIGS.glob("*.toml"), *CONFIGS.parent.glob("methods/*/*.toml")]),
    ids=lambda p: p.stem,
)
def test_no_shipped_document_turns_what_nothing_reads(path: Path) -> None:
    load(path)
