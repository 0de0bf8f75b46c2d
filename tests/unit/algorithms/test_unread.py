"""Options that nothing would read are refused with the reason; what presets bring along never is."""

import pytest

from triforge.algorithms.algorithm import resolve
from triforge.algorithms.presets import preset_names
from triforge.errors import ConfigError


@pytest.mark.parametrize(
    ("preset", "options", "sentence"),
    [
        ("grpo", {"filter_keep": 0.5}, "filter_keep: given 0.5, allowed only with group_filter = 'variance_topk' or"),
        ("grpo", {"loss": "reinforce", "off_policy": "tis", "clip_low": 0.1}, "clip_low: given 0.1 with loss = 'reinforce', allowed only with loss = 'cispo' or 'gspo' or"),
        ("grpo", {"loss": "reinforce", "off_policy": "tis", "log_ratio_clamp": 5}, "it has no ratio"),
        ("grpo", {"kl_beta": 0, "kl_estimator": "k1"}, "kl_estimator: given 'k1', allowed only with kl_beta above 0"),
        ("ppo", {"refills": 3}, "refills: given 3, allowed only with an estimator without a critic"),
        ("grpo", {"refills": 3, "group_filter": "variance_topk"}, "refills: given 3 with group_filter = 'variance_topk', allowed 0"),
        ("dapo", {"kl_clamp": "none"}, "there is no KL term"),
        ("dapo", {"kl_reference": "step_start"}, "nothing is compared with an anchor"),
        ("grpo", {"off_policy": "bypass", "off_policy_veto": "none"}, "off_policy_veto: given None, allowed only with off_policy = 'auto'"),
        ("rlanything_paper", {"acceptance_alpha": 0.1}, "two accuracies are compared once"),
        ("rlanything", {"vote_share": 0.5}, "the votes weigh what lam says"),
        ("rlanything_paper", {"invalid_vote_margin": 2}, "allowed only with invalid_votes = 'apart'"),
        ("grpo", {"reward_band": [0.1, 0.9]}, "no vote is trained on"),
        ("grpo", {"reward_lam": 0.5}, "reward_lam: given 0.5, allowed only with train_reward_model = true"),
        ("grpo", {"normalise": "mean", "std_floor": 0.3}, "std_floor: given 0.3, allowed only with normalise = 'std'"),
        ("grpo", {"job": "ce", "normalise": "mean"}, "normalise: given 'mean', allowed only with an estimator that"),
        ("grpo", {"job": "ce", "clip_low": 0.1}, "clip_low: given 0.1, allowed only with job = 'pg'"),
        ("grpo", {"job": "distil", "loss": "sapo"}, "loss: given 'sapo', allowed only with job = 'pg'"),
    ],
)  # fmt: skip
def test_a_option_that_nothing_reads_is_refused_with_the_reason(preset, options, sentence):
    with pytest.raises(ConfigError) as refused:
        resolve(preset, options)
    assert sentence in str(refused.value)


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_takes_an_unread_option_with_one_that_reads_it(name):
    assert resolve(name, {"kl_beta": 0.25, "kl_estimator": "k2"}).kl_estimator == "k2"


def test_what_a_preset_brought_along_may_lie_idle():
    assert resolve("starpo_s", {"group_filter": "none"}).filter_keep == 0.25
    assert resolve("reinforce_pp", {"kl_beta": 0, "kl_placement": "loss"}).kl_estimator == "k1"
    assert resolve("grpo", {"reward_band": "none"}).reward_band is None
    usual = resolve("rlanything")
    for option in ("filter_keep", "kl_estimator", "vote_share", "reward_band"):
        value = getattr(usual, option)
        assert resolve("dapo", {option: list(value) if isinstance(value, tuple) else value})
