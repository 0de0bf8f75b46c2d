"""What no preset may be: values out of range, and options that contradict each other."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from triforge.algorithms.presets import Preset

_SMALL = 1e-12
RANGES: tuple[tuple[str, float, float], ...] = (
    ("lam", 0.0, 100.0),
    ("vote_share", _SMALL, 0.9),
    ("trust_groups", 4, 100_000),
    ("invalid_vote_reward", -100.0, 100.0),
    ("std_floor", 0.0, 100.0),
    ("imitation_temperature", 0.0, 1e6),
    ("dpo_beta", _SMALL, 100.0),
    ("std_eps", 0.0, 1.0),
    ("std_ddof", 0, 1),
    ("gamma", 0.0, 1.0),
    ("gae_lam", 0.0, 1.0),
    ("turn_gamma", 0.0, 1.0),
    ("value_clip", _SMALL, 1e6),
    ("state_weight", _SMALL, 100.0),
    ("filter_keep", _SMALL, 1.0),
    ("invalid_action_penalty", 0.0, 100.0),
    ("step_cost", 0.0, 100.0),
    ("turn_limit_penalty", 0.0, 100.0),
    ("overlong_limit", 0, 10_000_000),
    ("overlong_buffer", 0, 10_000_000),
    ("aggregation_length", 0, 10_000_000),
    ("invalid_vote_margin", _SMALL, 100.0),
    ("alpha_low", 0.0, 1.0),
    ("alpha_high", 0.0, 1.0),
    ("acceptance_alpha", 1e-6, 0.5),
    ("clip_low", _SMALL, 1.0),
    ("clip_high", _SMALL, 100.0),
    ("dual_clip", 1.0 + _SMALL, 1e6),
    ("log_ratio_clamp", _SMALL, 20.0),
    ("entropy_bonus", 0.0, 100.0),
    ("kl_beta", 0.0, 100.0),
    ("kl_clamp", _SMALL, math.inf),
    ("kl_target", _SMALL, 100.0),
    ("kl_gain", _SMALL, 1.0),
    ("off_policy_cap", 1.0, 1e6),
    ("off_policy_veto", 0.0, 1.0),
    ("opsm_delta", 0.0, 100.0),
)


def combinations(p: Preset) -> tuple[tuple[bool, str], ...]:
    """Whether each impossible combination is given, and the sentence that says why it cannot be."""
    return (
        (
            not (p.use_outcome or p.use_votes),
            "use_outcome and use_votes: given false and false, allowed at least one true: nothing would reward the policy",
        ),
        (
            p.use_votes and p.lam == 0.0,
            "lam: given 0 with use_votes = true, allowed above 0 (or use_votes = false): the votes would be worth nothing",
        ),
        (
            p.vote_weight == "trust" and not (p.use_outcome and p.use_votes),
            "vote_weight: given trust with use_outcome or use_votes = false, allowed only with both: it says how much the "
            "votes add to the outcome",
        ),
        (
            p.alpha_low >= p.alpha_high,
            f"alpha_low and alpha_high: given {p.alpha_low} and {p.alpha_high}, allowed alpha_low < alpha_high",
        ),
        *_estimator_combinations(p),
        *_critic_combinations(p),
        *_loss_combinations(p),
        *_job_combinations(p),
        *_off_policy_combinations(p),
    )


def _estimator_combinations(p: Preset) -> tuple[tuple[bool, str], ...]:
    shapes = p.invalid_action_penalty or p.step_cost or p.turn_limit_penalty or p.overlong_limit
    return (
        (
            p.normalise == "relative" and (p.outcome == "signed" or p.use_votes or bool(shapes)),
            "normalise: given 'relative', allowed only with outcome = 'binary', use_votes = false and no penalty: it divides "
            "by the mean reward, so no reward may be negative",
        ),
        (
            p.normalise == "raw" and not (p.whiten or p.needs_critic),
            "normalise: given 'raw' with whiten = false, allowed only with whiten = true or a critic: without any baseline every "
            "failure-free batch would be reinforced whole",
        ),
        (
            p.normalise != "std" and p.std_floor > 0.0,
            f"std_floor: given {p.std_floor} with normalise = '{p.normalise}', allowed only 0: nothing is divided by a "
            "deviation",
        ),
        (
            p.lone_step == "raw" and p.estimator != "step_index",
            f"lone_step: given 'raw' with estimator = '{p.estimator}', allowed only with 'step_index': the published rule is "
            "about step indices",
        ),
        (
            p.estimator == "fused" and not (p.use_outcome and p.use_votes),
            "estimator: given 'fused' with use_outcome or use_votes = false, allowed only with both: it adds the one to the "
            "other",
        ),
        (
            p.vote_weight == "trust" and p.estimator not in ("step_index", "group"),
            f"vote_weight: given trust with estimator = '{p.estimator}', allowed 'step_index' or 'group': the others have no "
            "part of the votes that could be weighed apart",
        ),
        (
            p.vote_weight == "trust" and (p.whiten or bool(shapes)),
            "vote_weight: given trust with whiten or a penalty, allowed only without: its two parts are standardised apart",
        ),
        (
            p.estimator == "fused" and bool(shapes),
            "estimator: given 'fused' with a penalty, allowed only without: outcomes and votes are compared apart, and no part "
            "would hold it",
        ),
        (
            p.gamma != 1.0 and not p.sums_steps,
            f"gamma: given {p.gamma} with estimator = '{p.estimator}', allowed only 1: nothing there is summed over steps",
        ),
        (
            p.state_weight != 1.0 and p.estimator != "gigpo",
            f"state_weight: given {p.state_weight} with estimator = '{p.estimator}', allowed only with 'gigpo': nothing else "
            "compares within states",
        ),
        (
            p.overlong_buffer > p.overlong_limit,
            f"overlong_buffer: given {p.overlong_buffer}, allowed at most overlong_limit = {p.overlong_limit}: the penalty "
            "rises before the limit",
        ),
        (
            p.aggregation_length > 0 and p.aggregation != "step_sum",
            f"aggregation_length: given {p.aggregation_length} with aggregation = '{p.aggregation}', allowed only with "
            "'step_sum': nothing else divides by a constant",
        ),
    )


def _critic_combinations(p: Preset) -> tuple[tuple[bool, str], ...]:
    given = f"estimator: given '{p.estimator}' with"
    return (
        (
            p.job == "critic" and not p.needs_critic,
            f"job: given 'critic' with estimator = '{p.estimator}', allowed 'gae' or 'bilevel_gae': nothing else has a critic",
        ),
        (
            not p.needs_critic and (p.gae_lam != 1.0 or p.value_clip is not None),
            f"gae_lam and value_clip: given {p.gae_lam} and {p.value_clip} with estimator = '{p.estimator}', allowed only with "
            "'gae' or 'bilevel_gae': nothing else has a critic",
        ),
        (
            p.turn_gamma != 1.0 and p.estimator != "bilevel_gae",
            f"turn_gamma: given {p.turn_gamma} with estimator = '{p.estimator}', allowed only with 'bilevel_gae': nothing else "
            "is discounted by turns",
        ),
        (
            p.needs_critic and p.normalise != "raw",
            f"{given} normalise = '{p.normalise}', allowed only 'raw': rollouts are not compared, the critic's values are the "
            "baseline",
        ),
        (
            p.needs_critic and p.loss == "gspo",
            f"{given} loss = 'gspo', allowed 'gspo_token': the tokens of a response have advantages of their own",
        ),
        (
            p.needs_critic and p.opsm_delta is not None,
            f"{given} opsm_delta = {p.opsm_delta}, allowed only none: the tokens of a response have advantages of their own, so "
            "none is negative as a whole",
        ),
        (
            p.job == "critic"
            and (p.entropy_bonus > 0.0 or (p.kl_beta > 0.0 and p.kl_placement == "loss")),
            f"job: given 'critic' with entropy_bonus = {p.entropy_bonus} and kl_beta = {p.kl_beta}, allowed 0 (or kl_placement "
            "= 'reward'): the policy is left as it is, so it has no loss",
        ),
    )


def _loss_combinations(p: Preset) -> tuple[tuple[bool, str], ...]:
    return (
        (
            p.dual_clip is not None and p.loss not in ("ppo", "gspo", "gspo_token"),
            f"dual_clip: given {p.dual_clip} with loss = '{p.loss}', allowed only with the clipped losses 'ppo', 'gspo' and "
            "'gspo_token': the others have no minimum to bound",
        ),
        (
            p.kl_weighted and p.kl_beta == 0.0,
            "kl_weighted: given true with kl_beta = 0, allowed only with a KL term: there is nothing to weigh",
        ),
        (
            p.kl_target is not None and p.kl_beta == 0.0,
            f"kl_target: given {p.kl_target} with kl_beta = 0, allowed only with kl_beta above 0: the weight is steered from "
            "there, and from 0 it never moves",
        ),
        (
            p.loss == "reinforce" and p.off_policy in ("none", "bypass"),
            f"loss: given 'reinforce' with off_policy = '{p.off_policy}', allowed 'auto', 'decoupled', 'tis' or 'mis': it has no "
            "ratio of its own, so nothing would correct samples of other weights",
        ),
    )


def _job_combinations(p: Preset) -> tuple[tuple[bool, str], ...]:
    imitates = p.job not in ("pg", "critic")
    charged = p.kl_placement == "reward"
    return (
        (
            charged
            and (imitates or not (p.needs_critic or (p.whiten and p.normalise in ("raw", "mean")))),
            f"kl_placement: given 'reward' with whiten = {p.whiten}, normalise = '{p.normalise}' and job = '{p.job}', allowed "
            "only with true, 'raw' or 'mean', and 'pg': it needs a reward a token, and whatever compares whole groups has none",
        ),
        (
            charged and (p.kl_beta == 0.0 or p.kl_weighted),
            f"kl_placement: given 'reward' with kl_beta = {p.kl_beta} and kl_weighted = {p.kl_weighted}, allowed only above 0 "
            "and false: there would be nothing to take off, or no term of the loss to weigh",
        ),
        (
            charged and p.loss == "gspo",
            "loss: given 'gspo' with kl_placement = 'reward', allowed 'gspo_token': the tokens of a response then have "
            "advantages of their own",
        ),
        (
            imitates and (p.estimator != "group" or p.whiten or p.vote_weight == "trust"),
            f"job: given '{p.job}' with estimator = '{p.estimator}', whiten = {p.whiten} and vote_weight = '{p.vote_weight}', "
            "allowed only with 'group', false and 'constant': whole trajectories are imitated or paired, and no advantage is "
            "estimated",
        ),
        (
            imitates and (p.loss != "ppo" or p.dual_clip is not None or p.opsm_delta is not None),
            f"job: given '{p.job}' with a loss, dual_clip or opsm_delta of a policy gradient, allowed only without: there is "
            "no ratio",
        ),
        (
            imitates and p.off_policy not in ("auto", "none", "bypass"),
            f"off_policy: given '{p.off_policy}' with job = '{p.job}', allowed 'auto', 'none' or 'bypass': what is imitated may "
            "have been written by anybody, so nothing is corrected",
        ),
        (
            imitates and p.kl_weighted,
            f"kl_weighted: given true with job = '{p.job}', allowed only with 'pg': there is no ratio to weigh with",
        ),
        (
            p.dpo_beta != 0.1 and p.job != "dpo_pair",
            f"dpo_beta: given {p.dpo_beta} with job = '{p.job}', allowed only with 'dpo_pair': nothing else compares pairs",
        ),
        (
            p.job == "dpo_pair" and (p.kl_beta > 0.0 or p.entropy_bonus > 0.0),
            f"kl_beta and entropy_bonus: given {p.kl_beta} and {p.entropy_bonus} with job = 'dpo_pair', allowed 0: its loss "
            "holds the distance to the anchor already (dpo_beta)",
        ),
        (
            p.job == "dpo_pair" and p.aggregation != "token_mean",
            f"aggregation: given '{p.aggregation}' with job = 'dpo_pair', allowed 'token_mean': pairs are averaged, and a "
            "trajectory's tokens are summed up",
        ),
        (
            p.imitation_temperature != 1.0 and p.job != "distil",
            f"imitation_temperature: given {p.imitation_temperature} with job = '{p.job}', allowed only with 'distil': nothing "
            "else weighs candidates",
        ),
    )


def _off_policy_combinations(p: Preset) -> tuple[tuple[bool, str], ...]:
    band = p.off_policy_band
    weighs = p.off_policy not in ("none", "bypass")
    return (
        (
            band is not None and not 0.0 < band[0] <= 1.0 <= band[1],
            f"off_policy_band: given {band and list(band)}, allowed two weights above 0 with 1 between them: a sample of "
            "the very weights that are trained has the weight 1",
        ),
        (
            p.off_policy_cap is not None and p.off_policy not in ("auto", "tis"),
            f"off_policy_cap: given {p.off_policy_cap} with off_policy = '{p.off_policy}', allowed only with 'tis' (or 'auto', "
            "which becomes it): nothing else truncates",
        ),
        (
            band is not None and p.off_policy != "mis",
            f"off_policy_band: given {band and list(band)} with off_policy = '{p.off_policy}', allowed only with 'mis': nothing "
            "else masks",
        ),
        (
            not weighs and (p.off_policy_level != "token" or p.off_policy_normalize),
            f"off_policy_level and off_policy_normalize: given '{p.off_policy_level}' and {p.off_policy_normalize} with "
            f"off_policy = '{p.off_policy}', allowed 'token' and false: there are no weights to form",
        ),
    )
