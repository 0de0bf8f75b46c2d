"""Every option of the arithmetic in one frozen record, and the named settings of them.

The options are orthogonal axes: estimator, normalisation, loss, aggregation, off-policy correction, KL, filter, shaper. A
preset is a dict of options (`named.NAMED`) laid over the defaults below, which are those of `rlanything`. What cannot be
combined is refused with the reason (`combinations`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args, get_type_hints

from triforge.algorithms.aggregation import Aggregation
from triforge.algorithms.combinations import RANGES, combinations
from triforge.algorithms.named import NAMED
from triforge.algorithms.policy_losses import Job, Loss
from triforge.algorithms.unread import unread
from triforge.errors import ConfigError

Band = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Preset:
    """One setting of every option. Construction refuses impossible combinations.

    Rewards: a step is worth `R = O + lam * mean(S)` with outcome O in {-1, +1} and votes S in {-1, +1}; an unparsable
    vote counts 0 and stays in the denominator. A vote is worth `R * S`.

    Attributes:
        name: of the preset it started from.
        lam: weight of the votes beside the outcome, >= 0.
        vote_weight: `constant` adds lam times the votes to the outcome and standardises the sum; `trust` standardises
            outcome and votes apart and adds the votes with the weight `lam * trust`, where trust is the lower bound of
            `mu - 1` on the run's recent groups (`triforge.algorithms.theory`).
        vote_share: with `trust`, the highest share of the votes in an advantage whose two parts are equally large.
        trust_groups: with `trust`, how many of the latest judged groups it is measured on.
        use_outcome: the policy's reward contains O.
        use_votes: the policy's reward contains the votes.
        train_reward_model: votes become training samples of the judge.
        invalid_vote_reward: reward recorded for an unparsable vote.
        job: how the policy is trained: by its advantages (`pg`), by imitating its successes (`ce`) or the better of its
            rollouts (`distil`), or on pairs of a success and a failure (`dpo_pair`); see `imitation`. `critic` trains the
            critic alone and leaves the policy as it is. The reward model is always trained by its advantages.
        imitation_temperature: with `distil`, how much better a rollout must be to be imitated more; 0 imitates the best.
        dpo_beta: with `dpo_pair`, what a nat between the weights being trained and the KL anchor is worth.
        outcome: O is -1 or +1 (`signed`), or 0 or 1 (`binary`).
        estimator: compare steps of equal index (`step_index`), whole trajectories (`group`), trajectories and the steps
            taken in the same state (`gigpo`), steps with the same past (`branch`), or trajectories and the votes on all
            their steps (`fused`), see `estimators`; or nothing, but rewards with the values of a critic that is trained
            beside the policy, over tokens (`gae`) or turns and their tokens (`bilevel_gae`), see `returns`.
        normalise: how compared rewards become advantages, see `advantages.standardise`.
        gamma: discount a step of the returns of `gigpo`, a token of `gae` and `bilevel_gae`.
        gae_lam: of `gae` and `bilevel_gae`, how far beyond the next token (and turn) a surprise reaches back.
        turn_gamma: discount a turn of `bilevel_gae`.
        value_clip: how far a value of the critic may move in a step before the loss stops rewarding it; None sets no limit.
        state_weight: with `gigpo`, weight of the comparison within states beside that of trajectories.
        whiten: make all advantages of the batch, a token counting once, zero in the mean and one in deviation.
        std_floor: standard deviations below this are raised to it; 0 divides by what is there.
        std_eps: added to the divisor.
        std_ddof: 0 population, 1 sample standard deviation.
        lone_step: what a step that only one trajectory reached is worth: its raw reward or nothing.
        vote_scope: votes are standardised over one step or over all votes on the task.
        drop_unanimous: steps on which all votes agree do not train the judge.
        invalid_votes: `pooled` lets `invalid_vote_reward` into the mean and deviation of its neighbours; `apart` keeps
            it out and places it below every valid vote.
        invalid_vote_margin: with `apart`, how far below the worst valid vote (and below 0) an unparsable one lies.
        reinforce_unrewarded_votes: a vote whose own reward is not positive may still get a positive advantage.
        policy_band: accuracies (low, high), both inclusive, whose tasks train the policy; None trains on all.
        reward_band: the same for the reward model.
        mixed_groups_only: tasks whose rollouts all ended alike do not train the policy, whatever their votes say.
        group_filter: keep all groups (`none`), the `filter_keep` share of them that differ most (`variance_topk`), or the
            fewest that hold the share `filter_keep` of all variance (`variance_topp`).
        filter_keep: the share.
        truncated: responses that were cut off at their token limit are trained on (`keep`) or not (`mask`).
        bands: `stacked` lets the reward band see only what the policy band kept; `independent` lets each read the
            task's accuracy before any filter.
        invalid_action_penalty: taken off the reward for every step whose action was not understood or not allowed.
        step_cost: taken off for every step.
        turn_limit_penalty: taken off where a trajectory used up its turns.
        overlong_limit: tokens of a trajectory's responses at which 1 is taken off; 0 never does.
        overlong_buffer: how long before that the penalty begins to rise.
        alpha_low: tasks with lower accuracy are made easier.
        alpha_high: tasks with higher accuracy are made harder.
        acceptance: `paper` compares two noisy accuracies once; `confident` is the sequential test of `adaptation`.
        acceptance_alpha: highest chance of accepting a rewrite that changed nothing (`confident` only).
        loss: what is made of ratio and advantage, see `policy_losses`.
        clip_low: the ratio is clipped at 1 - clip_low.
        clip_high: the ratio is clipped at 1 + clip_high.
        dual_clip: a token of negative advantage costs at most this times the advantage, however likely it has become; None
            sets no limit.
        log_ratio_clamp: log-ratios are limited to +- this before the exponential.
        entropy_bonus: how much a nat of entropy at a token is worth; 0 is nothing.
        kl_beta: weight of the KL term; 0 turns it off.
        kl_estimator: k1, k2 or k3.
        kl_placement: the KL is a term of the loss, or is taken off the reward of each token and so of the return of all
            tokens before it (`reward`; before the batch is whitened).
        kl_reference: the anchor: the weights at the start of this step, or those the run began with.
        kl_clamp: limit of one token's KL value; None does not limit it.
        kl_weighted: multiply the KL term with the ratio, which makes it unbiased away from the weights that sampled.
        kl_target: nats a token from the anchor that the weight of the KL term is steered to; None leaves it at `kl_beta`.
        kl_gain: how fast, see `losses.steered_beta`.
        off_policy: what is done about samples of other weights than those trained, see `off_policy.Correction`; `auto` is
            `none` with a staleness bound of 0 and `tis` above.
        off_policy_level: the ratio of a token is its own, its response's product, or its geometric mean.
        off_policy_cap: largest weight of `tis`; None is 2 a token and 5 a sequence.
        off_policy_band: weights that `mis` keeps; None is 0.5 to 2, and 0.99 to 1.01 for geometric means.
        off_policy_veto: a response with a token whose own ratio is below this is not trained on; None vetoes nothing.
        off_policy_normalize: divide the weights by their mean over the batch.
        opsm_delta: responses with a negative advantage whose KL from what sampled them is above this are not trained on;
            None keeps them.
        aggregation: `step_mean` averages token means over step responses, `trajectory_mean` over trajectories,
            `task_mean` over tasks; `token_mean` averages over all tokens; `step_sum` adds up the tokens of each step
            response and divides by a constant length, see `aggregation.token_weights`.
        aggregation_length: that length in tokens; 0 is the longest response that may be sampled.
    """

    name: str
    lam: float = 1.0
    vote_weight: Literal["constant", "trust"] = "constant"
    vote_share: float = 0.25
    trust_groups: int = 256
    use_outcome: bool = True
    use_votes: bool = True
    train_reward_model: bool = True
    invalid_vote_reward: float = -2.0
    job: Job = "pg"
    imitation_temperature: float = 1.0
    dpo_beta: float = 0.1
    outcome: Literal["signed", "binary"] = "signed"
    estimator: Literal["step_index", "group", "gigpo", "branch", "fused", "gae", "bilevel_gae"] = (
        "step_index"
    )
    normalise: Literal["std", "mean", "others", "relative", "raw"] = "std"
    gamma: float = 1.0
    gae_lam: float = 1.0
    turn_gamma: float = 1.0
    value_clip: float | None = None
    state_weight: float = 1.0
    whiten: bool = False
    std_floor: float = 0.5
    std_eps: float = 0.0
    std_ddof: int = 0
    lone_step: Literal["raw", "zero"] = "zero"
    vote_scope: Literal["step", "task"] = "task"
    drop_unanimous: bool = False
    invalid_votes: Literal["pooled", "apart"] = "apart"
    invalid_vote_margin: float = 1.0
    reinforce_unrewarded_votes: bool = False
    policy_band: Band | None = None
    reward_band: Band | None = (0.2, 0.8)
    mixed_groups_only: bool = False
    group_filter: Literal["none", "variance_topk", "variance_topp"] = "none"
    filter_keep: float = 0.25
    truncated: Literal["keep", "mask"] = "keep"
    bands: Literal["stacked", "independent"] = "independent"
    invalid_action_penalty: float = 0.0
    step_cost: float = 0.0
    turn_limit_penalty: float = 0.0
    overlong_limit: int = 0
    overlong_buffer: int = 0
    alpha_low: float = 0.2
    alpha_high: float = 0.8
    acceptance: Literal["paper", "confident"] = "confident"
    acceptance_alpha: float = 0.05
    loss: Loss = "ppo"
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    log_ratio_clamp: float = 10.0
    entropy_bonus: float = 0.0
    kl_beta: float = 0.01
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    kl_placement: Literal["loss", "reward"] = "loss"
    kl_reference: Literal["step_start", "initial"] = "initial"
    kl_clamp: float | None = 10.0
    kl_weighted: bool = False
    kl_target: float | None = None
    kl_gain: float = 0.1
    off_policy: Literal["auto", "none", "bypass", "decoupled", "tis", "mis"] = "auto"
    off_policy_level: Literal["token", "sequence", "geometric"] = "token"
    off_policy_cap: float | None = None
    off_policy_band: Band | None = None
    off_policy_veto: float | None = 1e-4
    off_policy_normalize: bool = False
    opsm_delta: float | None = None
    aggregation: Aggregation = "step_mean"
    aggregation_length: int = 0

    def __post_init__(self) -> None:
        for field, low, high in RANGES:
            value = getattr(self, field)
            if value is not None and not low <= value <= high:
                raise ConfigError(
                    f"{field}: given {value}, allowed a number from {low:g} to {high:g}"
                )
        for field in ("policy_band", "reward_band"):
            band = getattr(self, field)
            if band is not None and not 0.0 <= band[0] <= band[1] <= 1.0:
                raise ConfigError(
                    f"{field}: given {list(band)}, allowed two accuracies in [0, 1], the low one first, or 'none'"
                )
        for impossible, sentence in combinations(self):
            if impossible:
                raise ConfigError(sentence)

    @property
    def needs_votes(self) -> bool:
        """Whether steps have to be judged at all."""
        return self.use_votes or self.train_reward_model

    @property
    def needs_critic(self) -> bool:
        """Whether advantages are estimated on the values of a critic."""
        return self.estimator in ("gae", "bilevel_gae")

    @property
    def sums_steps(self) -> bool:
        """Whether each step brings its own reward, so that the outcome stands on the last one only."""
        return self.needs_critic or self.estimator == "gigpo"

    def off_policy_in_force(self, staleness_bound: int, *, policy: bool = True) -> dict[str, Any]:
        """The off-policy options with `auto` and everything that depends on another one decided.

        What a policy imitates needs no correction; the reward model (`policy` false) never imitates.
        """
        weighs = staleness_bound > 0 and (self.job == "pg" or not policy)
        automatic = "tis" if weighs else "none"
        caps = {"token": 2.0, "sequence": 5.0, "geometric": 2.0}
        bands = {"token": (0.5, 2.0), "sequence": (0.5, 2.0), "geometric": (0.99, 1.01)}
        level = self.off_policy_level
        return {
            "off_policy": automatic if self.off_policy == "auto" else self.off_policy,
            "off_policy_level": level,
            "off_policy_cap": self.off_policy_cap or caps[level],
            "off_policy_band": list(self.off_policy_band or bands[level]),
            "off_policy_veto": self.off_policy_veto,
            "off_policy_normalize": self.off_policy_normalize,
            "opsm_delta": self.opsm_delta,
        }

    def loss_settings(self, *, policy: bool = True) -> dict[str, Any]:
        """The options that a learner reads besides those of the off-policy correction, of the policy or the reward model."""
        names = _LOSS_OPTIONS + (_POLICY_OPTIONS if policy else ())
        found = {name: getattr(self, name) for name in names}
        if policy and self.needs_critic:
            found["critic"] = {name: getattr(self, name) for name in _CRITIC_OPTIONS}
        return found


_LOSS_OPTIONS = (
    "loss", "clip_low", "clip_high", "dual_clip", "log_ratio_clamp", "entropy_bonus",
    "kl_beta", "kl_estimator", "kl_reference", "kl_clamp", "kl_weighted", "kl_target", "kl_gain",
    "aggregation",
)  # fmt: skip

_CRITIC_OPTIONS = ("estimator", "gamma", "gae_lam", "turn_gamma", "value_clip", "whiten")

_POLICY_OPTIONS = ("job", "dpo_beta", "kl_placement", "std_ddof", "std_eps")

PRESETS: Mapping[str, Preset] = {
    name: Preset(name=name, **options) for name, options in NAMED.items()
}


def resolve(name: str, overrides: Mapping[str, Any] | None = None) -> Preset:
    """The named preset with some options turned.

    Args:
        name: one of `PRESETS`.
        overrides: field name to value. Bands are two numbers, or the word "none" (TOML has no null).

    Raises:
        ConfigError: the name, a field or a value is unknown, the combination is impossible, or nothing reads an option.
    """
    if name not in PRESETS:
        raise ConfigError(f"preset: given {name!r}, allowed one of {sorted(PRESETS)}")
    hints = get_type_hints(Preset)
    known = [f.name for f in fields(Preset) if f.name != "name"]
    changes: dict[str, Any] = {}
    for field, value in (overrides or {}).items():
        if field == "name" and value == name:
            continue
        if field not in known:
            raise ConfigError(f"preset {name}: given unknown option {field!r}, allowed {known}")
        changes[field] = _coerce(field, hints[field], value)
    found, usual = replace(PRESETS[name], **changes), (PRESETS[name], Preset(name=name))
    given = [n for n, value in changes.items() if value not in [getattr(p, n) for p in usual]]
    sentence = unread(found, given)
    if sentence is not None:
        raise ConfigError(sentence)
    return found


def _coerce(field: str, hint: Any, value: Any) -> Any:
    """Bring a TOML or JSON value to the field's type."""
    options = get_args(hint)
    if hint is bool:
        good, allowed = isinstance(value, bool), "true or false"
    elif hint is int:
        good, allowed = _is_number(value) and value == int(value), "a whole number"
    elif hint is float:
        good, allowed = _is_number(value), "a number"
    elif type(None) not in options:
        good, allowed = value in options, f"one of {list(options)}"
    elif value is None or value == "none":
        return None
    elif float in options:
        good, allowed = _is_number(value), "a number or 'none'"
    else:
        good, allowed = _is_pair(value), "two numbers [low, high] or 'none'"
    if not good:
        raise ConfigError(f"{field}: given {value!r}, allowed {allowed}")
    return tuple(value) if isinstance(value, list) else value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and all(map(_is_number, value))
