"""Settings with a critic: possible ones, and the errors of the others."""

import pytest

from triforge.algorithms.algorithm import resolve
from triforge.config import parse
from triforge.errors import ConfigError


@pytest.mark.parametrize(
    ("preset", "overrides", "sentence"),
    [
        ("grpo", {"job": "critic"}, "job: given 'critic' with estimator = 'group'"),
        (
            "grpo",
            {"gae_lam": 0.9},
            "gae_lam: given 0.9 with estimator = 'group', allowed only with estimator = 'bilevel_gae' or 'gae'",
        ),
        ("grpo", {"value_clip": 0.2}, "value_clip: given 0.2 with estimator = 'group'"),
        ("ppo", {"turn_gamma": 0.9}, "turn_gamma: given 0.9 with estimator = 'gae'"),
        ("ppo", {"normalise": "mean"}, "allowed only 'raw': rollouts are not compared"),
        ("starpo_s", {"loss": "gspo"}, "estimator = 'gae' .* allowed 'gspo_token': the tokens of"),
        ("ppo", {"opsm_delta": 0.1}, "opsm_delta = 0.1, allowed only none"),
        ("ppo", {"job": "ce", "kl_placement": "loss"}, "job: given 'ce' with estimator = 'gae'"),
        ("starpo_s", {"job": "critic"}, "job: given 'critic' with entropy_bonus"),
        ("grpo", {"normalise": "raw"}, "allowed only with whiten = true or a critic"),
    ],
)
def test_what_cannot_be_with_a_critic_is_refused_with_the_reason(preset, overrides, sentence):
    with pytest.raises(ConfigError, match=sentence):
        resolve(preset, overrides)


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
