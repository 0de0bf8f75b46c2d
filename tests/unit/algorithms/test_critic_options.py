"""Settings with a critic: possible ones, and the errors of the others."""

import pytest

from triforge.algorithms.algorithm import resolve
from triforge.config import parse
from triforge.errors import ConfigError


@pytest.mark.parametrize(
    ("preset", "overrides"),
    [
        ("ppo", {"job": "critic"}),
        ("ppo_bilevel", {"loss": "gspo_token", "kl_placement": "loss"}),
        ("starpo_s", {"estimator": "bilevel_gae", "turn_gamma": 0.95}),
        ("ppo", {"use_votes": True, "train_reward_model": True, "off_policy": "tis"}),
    ],
)
def test_what_can_be_with_a_critic_reaches_the_learner_of_the_policy_alone(preset, overrides):
    found = resolve(preset, overrides)
    assert found.needs_critic
    assert found.estimator_options.model_dump().keys() >= {"gamma", "gae_lam", "value_clip"}
    assert not found.of_reward_model().needs_critic


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        (
            {"trainer": {"critic": {"alone_steps": 2}}},
            "trainer.critic: given alone_steps with algorithm preset 'rlanything', allowed only with",
        ),
        (
            {
                "algorithm": {"preset": "ppo", "overrides": {"job": "critic"}},
                "methods": {"envrl": {"sp": {"lambda0": 0.1}}},
            },
            "methods.envrl: given weights with algorithm.overrides.job = 'critic', allowed only 0",
        ),
    ],
)
def test_sections_that_nothing_would_obey_are_refused(document, sentence):
    with pytest.raises(ConfigError, match=sentence):
        parse(document)
    if "trainer" in document:
        parse(document | {"algorithm": {"preset": "ppo"}})
