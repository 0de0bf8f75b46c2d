"""The options of the arithmetic that belong to no single estimator or loss.

Rewards: a step is worth `R = O + lam * mean(S)` with outcome O, in {-1, +1} or of the episode's score, and votes S in
{-1, +1}; an unparsable vote counts 0 and stays in the denominator. A vote is worth `R * S`, with `reward_lam` in R.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from triforge.algorithms.jobs import JOBS, Job
from triforge.algorithms.registry import Only, Options

Band = tuple[float, float]
Aggregation = Literal["step_mean", "token_mean", "trajectory_mean", "task_mean", "step_sum"]


def _only(condition: str, needs: str) -> Only:
    """Read where an option has, or has not (`!=`), one of some values: `loss = ppo | gspo`."""
    name, sign, listed = condition.split(" ", 2)
    values = listed.split(" | ")

    def read(algorithm: CoreOptions) -> bool:
        return (str(getattr(algorithm, name)) in values) is (sign == "=")

    return Only(read, needs)


READS_LOSS = Only(
    lambda a: a.job_part.reads_loss,
    "job = 'pg': imitation has no ratio, and training the critic alone does not change the policy",
)
_IN_TARGET = _only("judge_target != monte_carlo | label", "a judge_target with the votes in it")
VOTES_TRAIN = _only("train_reward_model = True", "train_reward_model = true: no vote is trained on")
_COMPARED = _only("vote_weight = trust", "vote_weight = 'trust': the votes weigh what lam says")
_KL = Only(lambda a: a.kl_beta > 0.0, "kl_beta above 0: there is no KL term")
_WEIGHED = _only(
    "off_policy != none | bypass",
    "off_policy = 'auto', 'decoupled', 'tis' or 'mis': no ratio is looked at, there are no weights to form",
)


def _compared(option: str, needs: str, otherwise: Callable[[Any], bool] = lambda _: False) -> Only:
    """Read by the estimator, if it declares so (`Estimator.reads`), or else where `otherwise` holds."""
    return Only(lambda a: a.estimator_reads(option) or otherwise(a), needs)


class CoreOptions(Options):
    """Rewards, votes, comparison, filters, penalties, acceptance, KL term, off-policy correction, aggregation."""

    name: str = ""
    """Preset that it started from."""
    # ---- rewards ----
    lam: float = Field(1.0, ge=0, le=100)
    """Weight of the votes relative to the outcome; with the estimator `within`, how much they move within a
    trajectory."""
    vote_weight: Literal["constant", "trust"] = "constant"
    """`constant` adds lam times the votes to the outcome and standardises the sum; `trust`
    standardises outcome and votes apart and adds the votes with the weight `lam * trust`, trust
    being the lower bound of `mu - 1` on the run's recent groups; with `within` that weight takes
    the place of lam."""
    vote_steps: Annotated[
        tuple[int, int, int, int] | None,
        _only("use_votes = True", "use_votes = true: no vote rewards the policy"),
    ] = Field(None, strict=False)
    """Training steps between which the weight of the votes changes: it is 0 up to the first, rises to `lam` at the second, stays until
    the third and falls to 0 at the fourth; `none` is `lam` in every step."""
    vote_share: Annotated[float, _COMPARED] = Field(0.25, gt=0, le=0.9)
    """With `trust`, the highest share of the votes in an advantage whose two parts are equally
    large."""
    trust_groups: int = Field(256, ge=4, le=100_000)
    """How many of the latest judged groups trust is measured on."""
    use_outcome: bool = True
    """The policy's reward contains O."""
    use_votes: bool = True
    """The policy's reward contains the votes."""
    train_reward_model: bool = True
    """Votes become training samples of the reward model."""
    judge_target: Annotated[str, VOTES_TRAIN] = "published"
    """What the reward model is taught of a step: a name, or `package.module:name`."""
    reward_lam: Annotated[float, VOTES_TRAIN, _IN_TARGET] = Field(1.0, ge=0, le=100)
    """Weight of the votes relative to the outcome in the reward model's own target, whatever `lam` is."""
    invalid_vote_reward: float = Field(-2.0, ge=-100, le=100)
    """Reward recorded for an unparsable vote."""
    outcome: Literal["signed", "binary"] = "signed"
    """O is -1 or +1 (`signed`), or 0 or 1 (`binary`); of a score `2 * score - 1`, or the score itself."""
    # ---- what is trained ----
    job: str = Field("pg", examples=["pg", "ce", "distil", "dpo_pair", "critic"])
    """The policy is trained by its advantages (`pg`), by imitating its successes (`ce`) or the
    better of its rollouts (`distil`), or on pairs of a success and a failure (`dpo_pair`); `critic`
    trains the critic alone; `package.module:Class` names an objective of your own. The reward model is always trained by its advantages."""
    # ---- comparison ----
    estimator: str = "step_index"
    """How rewards become advantages: a name, or `package.module:name`."""
    normalise: Annotated[
        Literal["std", "mean", "others", "relative", "raw"],
        _compared("normalise", "an estimator that compares by it"),
    ] = "std"
    """How compared rewards become advantages."""
    whiten: bool = False
    """Make all advantages of the batch, a token counting once, zero in the mean and one in
    deviation."""
    std_floor: Annotated[
        float,
        _compared(
            "std_floor",
            "normalise = 'std' and an estimator that divides by it, or train_reward_model = true: nothing is divided by a deviation",
            lambda a: a.train_reward_model,
        ),
    ] = Field(0.5, ge=0, le=100)
    """Smaller deviations are raised to it; 0 divides by what is there."""
    std_eps: Annotated[
        float,
        _compared(
            "std_eps",
            "normalise = 'std' or 'relative' and an estimator that divides by it, or whiten = true: nothing is divided by a deviation",
            lambda a: a.whiten,
        ),
    ] = Field(0.0, ge=0, le=1)
    """Added to the divisor."""
    std_ddof: Annotated[
        int,
        _compared(
            "std_ddof",
            "normalise = 'std' and an estimator that divides by it, train_reward_model = true or whiten = true: no deviation is taken",
            lambda a: a.train_reward_model or a.whiten,
        ),
    ] = Field(0, ge=0, le=1)
    """0 population, 1 sample standard deviation."""
    # ---- votes as samples ----
    vote_scope: Annotated[Literal["step", "task"], VOTES_TRAIN] = "task"
    """Votes are compared over one step, or over all votes on the task."""
    drop_unanimous: Annotated[bool, VOTES_TRAIN] = False
    """Steps on which all votes agree do not train the reward model."""
    invalid_votes: Annotated[Literal["pooled", "apart"], VOTES_TRAIN] = "apart"
    """`pooled` lets `invalid_vote_reward` into the mean and deviation of its neighbours; `apart`
    keeps it out and places it below every valid vote."""
    invalid_vote_margin: Annotated[
        float,
        VOTES_TRAIN,
        _only(
            "invalid_votes = apart",
            "invalid_votes = 'apart': otherwise invalid_vote_reward is compared",
        ),
    ] = Field(1.0, gt=0, le=100)
    """With `apart`, how far below the worst valid vote (and below 0) an unparsable one lies."""
    reinforce_unrewarded_votes: Annotated[bool, VOTES_TRAIN] = False
    """A vote whose own reward is not positive may still get a positive advantage."""
    # ---- filters ----
    policy_band: Band | None = Field(None, strict=False)
    """Accuracies (low, high), both inclusive, whose tasks train the policy; none trains on all."""
    reward_band: Annotated[
        Band | None,
        Only(
            lambda a: a.train_reward_model or a.reward_band is None,
            "train_reward_model = true (or 'none'): no vote is trained on",
        ),
    ] = Field((0.2, 0.8), strict=False)
    """The same for the reward model."""
    bands: Literal["stacked", "independent"] = "independent"
    """`stacked` lets the reward band see only what the policy band kept; `independent` lets each
    read the task's accuracy before any filter."""
    mixed_groups_only: bool = False
    """Tasks whose rollouts all ended alike, with one score, do not train the policy."""
    group_filter: Literal["none", "variance_topk", "variance_topp"] = "none"
    """Keep all groups, the `filter_keep` share of them that differ most (`variance_topk`), or the
    fewest that hold that share of all variance (`variance_topp`)."""
    filter_keep: Annotated[
        float,
        _only(
            "group_filter != none",
            "group_filter = 'variance_topk' or 'variance_topp': all groups are kept",
        ),
    ] = Field(0.25, gt=0, le=1)
    """The share."""
    filter_slack: Annotated[
        float, _only("group_filter = variance_topp", "group_filter = 'variance_topp'")
    ] = Field(0.0, ge=0, le=100)
    """Variance that may be missing from that share."""
    filter_scale: Annotated[
        Literal["none", "linear", "sqrt"],
        _only(
            "group_filter != none",
            "group_filter = 'variance_topk' or 'variance_topp': all groups are kept",
        ),
    ] = "none"
    """Times what the loss is taken: 1, the share of groups that were kept, or its root."""
    refills: Annotated[
        int,
        Only(
            lambda a: not a.needs_critic or a.mixed_groups_only or a.policy_band is not None,
            "an estimator without a critic, mixed_groups_only = true or a policy_band: every group teaches a critic something",
        ),
    ] = Field(0, ge=0, le=100)
    """How often new groups are drawn in the place of those from which nothing can be learnt, before
    the step trains on what there is; 0 draws none."""
    truncated: Literal["keep", "mask"] = "keep"
    """Responses that were cut off at their token limit are trained on (`keep`) or not (`mask`). One that ends
    with its last allowed token (an end token, a stop string, a finished grammar) is whole."""
    # ---- penalties ----
    invalid_action_penalty: float = Field(0.0, ge=0, le=100)
    """Taken off for every step whose action was not understood or not allowed."""
    step_cost: float = Field(0.0, ge=0, le=100)
    """Taken off for every step."""
    turn_limit_penalty: float = Field(0.0, ge=0, le=100)
    """Taken off where a trajectory used up its turns."""
    overlong_limit: int = Field(0, ge=0, le=10_000_000)
    """Tokens of a trajectory's responses at which 1 is taken off; 0 never does."""
    overlong_buffer: int = Field(0, ge=0, le=10_000_000)
    """How long before that the penalty begins to rise."""
    # ---- rewriting of tasks ----
    alpha_low: float = Field(0.2, ge=0, le=1)
    """Tasks with lower accuracy are made easier."""
    alpha_high: float = Field(0.8, ge=0, le=1)
    """Tasks with higher accuracy are made harder."""
    acceptance: Literal["paper", "confident"] = "confident"
    """`paper` compares two noisy accuracies once; `confident` is a sequential test."""
    acceptance_alpha: Annotated[
        float,
        _only(
            "acceptance = confident",
            "acceptance = 'confident': two accuracies are compared once, without a test",
        ),
    ] = Field(0.05, ge=1e-06, le=0.5)
    """Highest chance of accepting a rewrite that changed nothing."""
    train_on_pairs: Literal["both", "parent", "none"] = "both"
    """Groups of a pair that measures a rewrite that are trained on, whatever the verdict: `both`, the
    `parent`'s or `none`. A candidate that is accepted is a training task from then on."""
    # ---- loss ----
    loss: Annotated[str, READS_LOSS] = "ppo"
    """What is made of ratio and advantage: a name, or `package.module:name`."""
    entropy_bonus: float = Field(0.0, ge=0, le=100)
    """How much a nat of entropy at a token is worth."""
    kl_beta: float = Field(0.01, ge=0, le=100)
    """Weight of the KL term; 0 turns it off."""
    kl_estimator: Annotated[Literal["k1", "k2", "k3"], _KL] = "k3"
    """Estimator of the KL."""
    kl_placement: Literal["loss", "reward"] = "loss"
    """The KL is a term of the loss, or is taken off the reward of each token and so of the return
    of all tokens before it (`reward`; before the batch is whitened)."""
    kl_reference: Annotated[
        Literal["step_start", "initial", "sampled"],
        Only(
            lambda a: a.kl_beta > 0.0 or a.job_part.pairs,
            "kl_beta above 0 or job = 'dpo_pair': nothing is compared with an anchor",
        ),
    ] = "initial"
    """The anchor: the weights at the start of this step, those the run began with, or those that sampled each token."""
    kl_clamp: Annotated[float | None, _KL] = Field(10.0, gt=0)
    """Limit of one token's KL value; none does not limit it."""
    kl_weighted: Annotated[bool, _KL, READS_LOSS] = False
    """Multiply the KL term with the ratio, which makes it unbiased away from the weights that
    sampled."""
    # ---- samples of other weights ----
    off_policy: Literal["auto", "none", "bypass", "decoupled", "tis", "mis"] = "auto"
    """What is done about samples of other weights than those trained; `auto` is `none` with a
    staleness bound of 0 and `tis` above."""
    off_policy_level: Annotated[Literal["token", "sequence", "geometric"], _WEIGHED] = "token"
    """The ratio of a token is its own, its response's product, or its geometric mean."""
    off_policy_cap: Annotated[
        float | None,
        _only(
            "off_policy = auto | tis",
            "off_policy = 'tis' (or 'auto', which becomes it): nothing else truncates",
        ),
    ] = Field(None, ge=1, le=1_000_000.0)
    """Largest weight of `tis`; none is 2 a token and 5 a sequence."""
    off_policy_band: Annotated[
        Band | None, _only("off_policy = mis", "off_policy = 'mis': nothing else masks")
    ] = Field(None, strict=False)
    """Weights that `mis` keeps; none is 0.5 to 2, and 0.99 to 1.01 for geometric means."""
    off_policy_veto: Annotated[float | None, _WEIGHED] = Field(0.0001, ge=0, le=1)
    """A response with a token whose own ratio is below this is not trained on; none vetoes
    nothing."""
    opsm_delta: Annotated[float | None, READS_LOSS] = Field(None, ge=0, le=100)
    """Responses with a negative advantage whose KL from what sampled them is above this are not
    trained on; none keeps them."""
    # ---- how much a token counts ----
    aggregation: Aggregation = "step_mean"
    """`step_mean` averages token means over step responses, `trajectory_mean` over trajectories,
    `task_mean` over tasks; `token_mean` averages over all tokens; `step_sum` adds up the tokens of
    each response and divides by a constant length."""
    aggregation_length: Annotated[
        int,
        _only(
            "aggregation = step_sum", "aggregation = 'step_sum': nothing else divides by a constant"
        ),
    ] = Field(0, ge=0, le=10_000_000)
    """That length in tokens; 0 is the longest response that may be sampled."""

    @property
    def needs_votes(self) -> bool:
        """Whether steps have to be judged at all."""
        return self.use_votes or self.train_reward_model

    @property
    def needs_success(self) -> str:
        """The option that must know which episodes succeed, as it is given; empty where scores are enough."""
        read = {
            "train_reward_model = true": self.train_reward_model,
            "vote_weight = 'trust'": self.vote_weight == "trust",
            "a policy_band": self.policy_band is not None,
            f"job = '{self.job}'": self.job_part.needs_success,
        }
        return next((option for option, reads in read.items() if reads), "")

    @property
    def job_part(self) -> Job:
        """The chosen job."""
        return JOBS.find(self.job)

    @property
    def imitates(self) -> bool:
        """Whether the policy is trained on its own rollouts and not by advantages."""
        return self.job_part.imitates

    @property
    def charged(self) -> bool:
        """Whether the KL is taken off the reward of each token."""
        return self.kl_placement == "reward"

    @property
    def penalises(self) -> bool:
        """Whether any penalty is subtracted from rewards."""
        costs = (self.invalid_action_penalty, self.step_cost, self.turn_limit_penalty)
        return any(costs) or self.overlong_limit > 0

    def conflicts(self, algorithm: CoreOptions) -> Iterator[tuple[bool, str]]:  # noqa: ARG002
        """Yield conflicts between the core options."""
        yield from self._bands()
        yield from self._rewards()

    def _bands(self) -> Iterator[tuple[bool, str]]:
        for name, band in (("policy_band", self.policy_band), ("reward_band", self.reward_band)):
            yield (
                band is not None and not 0.0 <= band[0] <= band[1] <= 1.0,
                f"{name}: given {band and list(band)}, allowed two accuracies in [0, 1], the low one first, or 'none'",
            )
        band = self.off_policy_band
        yield (
            band is not None and not 0.0 < band[0] <= 1.0 <= band[1],
            f"off_policy_band: given {band and list(band)}, allowed two weights above 0 with 1 between them: a sample of the "
            "very weights that are trained has the weight 1",
        )
        yield (
            self.alpha_low >= self.alpha_high,
            f"alpha_low and alpha_high: given {self.alpha_low} and {self.alpha_high}, allowed alpha_low < alpha_high",
        )
        yield (
            self.overlong_buffer > self.overlong_limit,
            f"overlong_buffer: given {self.overlong_buffer}, allowed at most overlong_limit = {self.overlong_limit}: the "
            "penalty rises before the limit",
        )

        yield (
            self.refills > 0 and self.group_filter != "none",
            f"refills: given {self.refills} with group_filter = '{self.group_filter}', allowed 0 or 'none': a filter keeps a "
            "share of all groups that were played, so those drawn in place of others would let more of them through",
        )

    def _rewards(self) -> Iterator[tuple[bool, str]]:
        yield (
            not (self.use_outcome or self.use_votes),
            "use_outcome and use_votes: given false and false, allowed at least one true: nothing would reward the policy",
        )
        yield (
            self.use_votes and self.lam == 0.0,
            "lam: given 0 with use_votes = true, allowed above 0 (or use_votes = false): the votes would be worth nothing",
        )
        times = self.vote_steps
        yield (
            times is not None and (min(times) < 0 or list(times) != sorted(times)),
            f"vote_steps: given {times and list(times)}, expected four steps of at least 0, none before the one in front of it",
        )
        trusts = self.vote_weight == "trust"
        yield (
            trusts and not (self.use_outcome and self.use_votes),
            "vote_weight: given trust with use_outcome or use_votes = false, allowed only with both: it says how much the "
            "votes add to the outcome",
        )
        yield (
            trusts and (self.whiten or self.penalises),
            "vote_weight: given trust with whiten or a penalty, allowed only without: its two parts are standardised apart",
        )
        negative = self.outcome == "signed" or self.use_votes or self.penalises
        yield (
            self.normalise == "relative" and negative,
            "normalise: given 'relative', allowed only with outcome = 'binary', use_votes = false and no penalty: it divides "
            "by the mean reward, so no reward may be negative",
        )
        yield (
            self.charged and (self.kl_beta == 0.0 or self.kl_weighted),
            f"kl_placement: given 'reward' with kl_beta = {self.kl_beta} and kl_weighted = {self.kl_weighted}, allowed only "
            "above 0 and false: there would be nothing to take off, or no term of the loss to weigh",
        )
