"""Fields of a document that nothing would read are refused with the reason; what stands at its default never is."""

from pathlib import Path
from typing import Any

import pytest

from triforge.config import load, parse
from triforge.errors import ConfigError

GAE = {"preset": "ppo", "overrides": {"job": "critic"}}
SOMETHING = "sp.lambda0 or id.lambda0 above 0 or measure = true"


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        (
            {"trainer": {"policy": {"lora_alpha": 64}}},
            "trainer.policy.lora_alpha: given 64, allowed only with lora_rank above 0: no adapter is trained",
        ),
        (
            {"trainer": {"reward": {"lora_targets": ["q_proj"]}}},
            r"trainer.reward.lora_targets: given \('q_proj',\), allowed only with lora_rank",
        ),
        (
            {"trainer": {"policy": {"schedule_updates": 100}}},
            "trainer.policy.schedule_updates: given 100, allowed only with schedule = 'linear' or 'cosine'",
        ),
        (
            {"trainer": {"critic": {"alone_steps": 2}}, "algorithm": GAE},
            "trainer.critic.alone_steps: given 2 with algorithm.overrides.job = 'critic'.*all steps train the critic alone",
        ),
        (
            {"methods": {"envrl": {"history": 4}}},
            f"methods.envrl.history: given 4, allowed only with {SOMETHING}",
        ),
        (
            {"methods": {"envrl": {"measure": True, "schedule": "linear"}}},
            "methods.envrl.schedule: given 'linear', allowed only with a weight above 0",
        ),
        (
            {"methods": {"rlve": {"levels": 2}}},
            "methods.rlve: given levels with adaptation.controller = 'llm_rewrite'",
        ),
        (
            {"report": {"wandb_mode": "offline"}},
            "report.wandb_mode: given 'offline', allowed only with a wandb_project",
        ),
    ],
)
def test_a_field_that_nothing_reads_is_refused_with_the_reason(
    document: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
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
