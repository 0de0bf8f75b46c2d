"""Options that contradict each other or that nothing reads are refused; what a preset brings along never is."""

import math

import pytest

from triforge.algorithms.algorithm import resolve
from triforge.algorithms.presets import preset_names
from triforge.errors import ConfigError


@pytest.mark.parametrize(
    ("preset", "options", "reason"),
    [
        ("rlanything", {"discount": 1.0}, "unknown option 'discount'"),
        ("rlanything", {"name": "other"}, "unknown option 'name'"),
        # values
        ("rlanything", {"lam": True}, "lam: given True, allowed a number"),
        ("rlanything", {"lam": math.nan}, "lam: given nan, allowed a number"),
        ("rlanything", {"lam": -1}, "lam: given -1, allowed a number from 0 to 100"),
        ("rlanything", {"std_ddof": 0.5}, "std_ddof: given 0.5, allowed a whole number"),
        ("rlanything", {"use_votes": 1}, "use_votes: given 1, allowed true or false"),
        ("rlanything", {"vote_scope": "batch"}, "given 'batch', allowed one of ['step', 'task']"),
        ("rlanything", {"kl_clamp": "off"}, "given 'off', allowed a number above 0 or 'none'"),
        ("rlanything", {"policy_band": 0.5}, "given 0.5, allowed two numbers [low, high]"),
        ("rlanything", {"policy_band": [0.8, 0.2]}, "policy_band: given [0.8, 0.2]"),
        ("rlanything", {"alpha_low": 0.8}, "alpha_low and alpha_high: given 0.8 and 0.8"),
        ("rlanything", {"judge_target": "guess"}, "'centred', 'label', 'monte_carlo', 'published'"),
        ("grpo", {"overlong_buffer": 5}, "allowed at most overlong_limit = 0"),
        # rewards and their comparison
        ("rlanything", {"use_outcome": False, "use_votes": False}, "nothing would reward the"),
        ("rlanything", {"lam": 0}, "lam: given 0 with use_votes"),
        ("rlanything", {"vote_weight": "trust", "use_outcome": False}, "vote_weight: given trust"),
        ("rlanything", {"vote_weight": "trust", "use_votes": False}, "vote_weight: given trust"),
        ("rlanything", {"vote_weight": "trust", "estimator": "gigpo"}, "vote_weight: given trust"),
        ("rlanything", {"estimator": "within", "use_votes": False}, "estimator: given 'within'"),
        ("rlanything", {"estimator": "within", "step_cost": 0.1}, "no part would hold it"),
        ("grpo", {"normalise": "relative"}, "no reward may be negative"),
        ("grpo", {"normalise": "relative", "outcome": "binary", "step_cost": 1}, "be negative"),
        ("grpo", {"normalise": "raw"}, "allowed only with whiten = true or a critic"),
        ("grpo", {"lone_step": "raw"}, "allowed only with estimator = 'step_index'"),
        ("grpo", {"gamma": 0.9}, "gamma: given 0.9 with estimator = 'group'"),
        ("grpo", {"state_weight": 2}, "allowed only with estimator = 'gigpo'"),
        ("grpo", {"aggregation_length": 5}, "allowed only with aggregation = 'step_sum'"),
        # losses, KL and correction
        ("grpo", {"loss": "cispo", "dual_clip": 3}, "dual_clip: given 3 with loss = 'cispo'"),
        ("grpo", {"kl_weighted": True, "kl_beta": 0}, "kl_weighted: given True"),
        ("grpo", {"loss": "reinforce", "off_policy": "bypass"}, "it has no ratio of its own"),
        ("rlanything", {"off_policy": "mis", "off_policy_cap": 3}, "only with off_policy = 'tis'"),
        ("rlanything", {"off_policy_band": [0.5, 2.0]}, "allowed only with off_policy = 'mis'"),
        ("grpo", {"off_policy": "mis", "off_policy_band": [1.5, 2.0]}, "with 1 between"),
        ("grpo", {"off_policy": "bypass", "off_policy_level": "sequence"}, "no weights to form"),
        # a critic
        ("grpo", {"job": "critic"}, "job: given 'critic' with estimator = 'group'"),
        ("grpo", {"gae_lam": 0.9}, "allowed only with estimator = 'bilevel_gae' or 'gae'"),
        ("grpo", {"value_clip": 0.2}, "value_clip: given 0.2 with estimator = 'group'"),
        ("ppo", {"turn_gamma": 0.9}, "turn_gamma: given 0.9 with estimator = 'gae'"),
        ("ppo", {"normalise": "mean"}, "allowed only 'raw': rollouts are not compared"),
        ("starpo_s", {"loss": "gspo"}, "allowed 'gspo_token': the tokens of"),
        ("ppo", {"opsm_delta": 0.1}, "opsm_delta = 0.1, allowed only none"),
        ("ppo", {"job": "ce", "kl_placement": "loss"}, "job: given 'ce' with estimator = 'gae'"),
        ("starpo_s", {"job": "critic"}, "job: given 'critic' with entropy_bonus"),
        # options that nothing would read
        ("grpo", {"filter_keep": 0.5}, "filter_keep: given 0.5, allowed only with group_filter"),
        ("grpo", {"loss": "reinforce", "off_policy": "tis", "clip_low": 0.1}, "clip_low: given"),
        ("grpo", {"loss": "reinforce", "off_policy": "tis", "log_ratio_clamp": 5}, "has no ratio"),
        ("grpo", {"kl_beta": 0, "kl_estimator": "k1"}, "allowed only with kl_beta above 0"),
        ("dapo", {"kl_clamp": "none"}, "there is no KL term"),
        ("dapo", {"kl_reference": "step_start"}, "nothing is compared with an anchor"),
        ("ppo", {"refills": 3}, "allowed only with an estimator without a critic"),
        ("grpo", {"refills": 3, "group_filter": "variance_topk"}, "refills: given 3"),
        (
            "grpo",
            {"off_policy": "bypass", "off_policy_veto": "none"},
            "off_policy_veto: given None",
        ),
        ("rlanything_paper", {"acceptance_alpha": 0.1}, "two accuracies are compared once"),
        ("rlanything_paper", {"invalid_vote_margin": 2}, "only with invalid_votes = 'apart'"),
        ("rlanything", {"vote_share": 0.5}, "the votes weigh what lam says"),
        ("rlanything", {"target_place": "state"}, "only with judge_target = 'monte_carlo'"),
        ("grpo", {"judge_target": "centred"}, "no vote is trained on"),
        ("grpo", {"reward_band": [0.1, 0.9]}, "no vote is trained on"),
        ("grpo", {"reward_lam": 0.5}, "allowed only with train_reward_model = true"),
        ("grpo", {"normalise": "mean", "std_floor": 0.3}, "allowed only with normalise = 'std'"),
        ("grpo", {"job": "ce", "normalise": "mean"}, "normalise: given 'mean', allowed only with"),
        ("grpo", {"job": "ce", "clip_low": 0.1}, "clip_low: given 0.1, allowed only with job"),
        ("grpo", {"job": "distil", "loss": "sapo"}, "loss: given 'sapo', allowed only with job"),
    ],
)
def test_options_are_refused_with_the_reason(preset, options, reason):
    with pytest.raises(ConfigError) as refused:
        resolve(preset, options)
    assert reason in str(refused.value)


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
