"""Options that nothing would read are refused with the reason; what presets bring along never is."""

from dataclasses import asdict

import pytest

from triforge.algorithms.presets import PRESETS, Preset, resolve
from triforge.errors import ConfigError


@pytest.mark.parametrize(
    ("preset", "options", "sentence"),
    [
        ("grpo", {"filter_keep": 0.5}, "group_filter = 'none', allowed only with 'variance_topk' or"),
        ("grpo", {"loss": "reinforce", "off_policy": "tis", "clip_low": 0.1}, "it clips no ratio"),
        ("grpo", {"loss": "sapo", "clip_high": 0.3}, "clip_high: given 0.3 with loss = 'sapo'"),
        ("grpo", {"loss": "reinforce", "off_policy": "tis", "log_ratio_clamp": 5}, "it has no ratio"),
        ("grpo", {"kl_beta": 0, "kl_estimator": "k1"}, "kl_estimator: given k1 with kl_beta = 0, allowed only with kl_beta above"),
        ("dapo", {"kl_clamp": "none"}, "there is no KL term"),
        ("grpo", {"kl_gain": 0.5}, "kl_gain: given 0.5 with kl_target = none, allowed only with a kl_target"),
        ("dapo", {"kl_target": 0.1}, "kl_target: given 0.1 with kl_beta = 0, allowed only with kl_beta above 0"),
        ("dapo", {"kl_reference": "step_start"}, "nothing is compared with an anchor"),
        ("rloo", {"std_eps": 1e-3}, "std_eps: given 0.001 with normalise = 'others'"),
        ("grpo", {"off_policy": "bypass", "off_policy_veto": "none"}, "off_policy_veto: given None with off_policy = 'bypass'"),
        ("rlanything_paper", {"acceptance_alpha": 0.1}, "two accuracies are compared once"),
        ("rlanything", {"vote_share": 0.5}, "the votes weigh what lam says"),
        ("rlanything_paper", {"invalid_vote_margin": 2}, "invalid_votes = 'pooled', allowed only with 'apart'"),
        ("grpo", {"reward_band": [0.1, 0.9]}, "no vote is trained on"),
        ("grpo", {"drop_unanimous": True}, "train_reward_model = false, allowed only with true"),
    ],
)  # fmt: skip
def test_a_option_that_nothing_reads_is_refused_with_the_reason(preset, options, sentence):
    with pytest.raises(ConfigError) as refused:
        resolve(preset, options)
    assert sentence in str(refused.value)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_says_all_of_itself_and_its_defaults_again(name):
    assert resolve(name, asdict(PRESETS[name])) == PRESETS[name]
    assert resolve(name, {"kl_beta": 0.25} | {"kl_estimator": "k2"}).kl_estimator == "k2"


def test_what_a_preset_brought_along_may_lie_idle():
    assert resolve("starpo_s", {"group_filter": "none"}).filter_keep == 0.25
    assert resolve("reinforce_pp", {"kl_beta": 0, "kl_placement": "loss"}).kl_estimator == "k1"
    assert resolve("grpo", {"reward_band": "none"}).reward_band is None
    usual = Preset(name="x")
    for option in ("filter_keep", "kl_estimator", "vote_share", "reward_band"):
        value = getattr(usual, option)
        assert resolve("dapo", {option: list(value) if isinstance(value, tuple) else value})
