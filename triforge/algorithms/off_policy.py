"""Correction for samples of other weights than those that are trained, against the array API.

Three policies meet: *behave* sampled (an engine, perhaps of an older version), *prox* are the weights at the start of
the step, *theta* those that are being trained. The objective keeps PPO's clip around prox and weighs each token with how
much likelier prox makes it than what sampled it:

    - w * min(u * A, clip(u) * A)        w = prox / behave, a constant        u = theta / prox

Arrays have the shape [sequences, tokens]; a sequence is one response (a turn of an episode, a vote). `mask` (bool) says
which cells are tokens; what the others hold has no influence. A token that is masked out has weight 0 and stays in the
denominator of the loss: it is not replaced.

Sources: decoupled PPO, arXiv 2110.00641, as used by AReaL (arXiv 2505.24298); truncated importance sampling (F. Yao et
al., 2025); masked importance sampling of IcePop (Ling team, 2025); off-policy sequence masking, arXiv 2512.02556.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from array_api_compat import array_namespace

from triforge.algorithms.loss_terms import KL_ESTIMATORS, SAFE_LOG

Array = Any
Mode = Literal["none", "bypass", "decoupled", "tis", "mis"]
Level = Literal["token", "sequence", "geometric"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Correction:
    """The correction for samples of other weights. Options are those of `triforge.algorithms.core`.

    Attributes:
        mode: `none` and `bypass` take the behaviour log-probabilities for those of prox, so one ratio does both jobs and
            no forward pass is spent; `decoupled` weighs with w as it is, `tis` with w up to `cap`, `mis` with w inside
            `band` and 0 outside.
        level: w of a token is its own ratio, the product over its sequence, or the geometric mean over it.
        cap: largest w of `tis`.
        band: allowed w of `mis`, both ends inclusive.
        veto: a sequence with a token whose own ratio is below this has weight 0; None vetoes nothing.
    """

    mode: Mode = "none"
    level: Level = "token"
    cap: float = 2.0
    band: tuple[float, float] = (0.5, 2.0)
    veto: float | None = 1e-4

    @property
    def needs_prox(self) -> bool:
        """Whether log-probabilities under the weights at the start of the step have to be computed."""
        return self.mode not in ("none", "bypass")


@dataclass(frozen=True, slots=True)
class OffPolicyMetrics:
    """How far prox is from what sampled, over the tokens.

    Mean and largest w before anything was cut off; shares of tokens whose w was lowered to the cap, that have weight 0
    (vetoed ones included), and in vetoed sequences; three estimates of KL(behave, prox) in nats.
    """

    w_mean: float
    w_max: float
    capped: float
    masked: float
    vetoed: float
    k1: float
    k2: float
    k3: float

    def as_metrics(self) -> dict[str, float]:
        """By name, with the prefix `off_policy_`."""
        return {f"off_policy_{name}": value for name, value in asdict(self).items()}


def importance_weights(
    prox: Array, behave: Array, mask: Array, correction: Correction
) -> tuple[Array, OffPolicyMetrics]:
    """Return the weight w of each token (0 outside of sampled tokens) and measures of the cut.

    `prox` and `behave` are log-probabilities under the weights at the start of the step and as the engine reported them.
    """
    xp = array_namespace(prox, behave, mask)
    zero = xp.zeros_like(prox)
    difference = xp.clip(xp.where(mask, prox - behave, zero), -SAFE_LOG, SAFE_LOG)
    counts = xp.astype(mask, prox.dtype)
    total = max(1.0, float(xp.sum(counts)))
    raw = _ratios(difference, counts, correction.level)
    weights, capped, kept = raw, xp.zeros_like(mask), xp.ones_like(mask)
    if correction.mode == "tis":
        capped = raw > correction.cap
        weights = xp.clip(raw, None, correction.cap)
    elif correction.mode == "mis":
        kept = (raw >= correction.band[0]) & (raw <= correction.band[1])
    elif not correction.needs_prox:
        weights = xp.ones_like(raw)
    vetoed = xp.zeros_like(mask)
    if correction.veto is not None and correction.needs_prox:
        worst = xp.min(xp.exp(difference), axis=-1, keepdims=True)
        vetoed = (worst < correction.veto) & mask
    weights = xp.where(mask & kept & ~vetoed, weights, zero)

    def mean(values: Array) -> float:
        return float(xp.sum(xp.where(mask, xp.astype(values, prox.dtype), zero))) / total

    return weights, OffPolicyMetrics(
        w_mean=mean(raw),
        w_max=float(xp.max(xp.where(mask, raw, zero))) if float(xp.sum(counts)) else 1.0,
        capped=mean(capped & ~vetoed),
        masked=mean(~kept | vetoed),
        vetoed=mean(vetoed),
        **{name: mean(kl(-difference, zero, clamp=None)) for name, kl in KL_ESTIMATORS.items()},
    )


def _ratios(difference: Array, counts: Array, level: Level) -> Array:
    """Return the weights before the cut."""
    xp = array_namespace(difference, counts)
    if level == "token":
        return xp.exp(difference)
    together = xp.sum(difference, axis=-1, keepdims=True)
    if level == "geometric":
        together = together / xp.clip(xp.sum(counts, axis=-1, keepdims=True), 1.0, None)
    ratio = xp.exp(xp.clip(together, -SAFE_LOG, SAFE_LOG))
    return ratio + xp.zeros_like(difference)


def opsm_keeps(
    logprobs: Array, behave: Array, advantages: Array, mask: Array, *, delta: float
) -> Array:
    """Off-policy sequence masking: False for the tokens of bad sequences that theta has moved away from already.

    A sequence is dropped when its mean advantage is below 0 and the mean of `behave - logprobs` over its tokens, an
    estimate of KL(behave, theta), is above `delta` nats.
    """
    xp = array_namespace(logprobs, behave, advantages, mask)
    zero = xp.zeros_like(logprobs)
    counts = xp.clip(xp.sum(xp.astype(mask, logprobs.dtype), axis=-1, keepdims=True), 1.0, None)
    drift = xp.sum(xp.where(mask, behave - logprobs, zero), axis=-1, keepdims=True) / counts
    worth = xp.sum(xp.where(mask, advantages, zero), axis=-1, keepdims=True)
    return ~((worth < 0) & (drift > delta)) & mask


def staleness_measures(ages: Mapping[int, int]) -> dict[str, float]:
    """Mean, maximum and shares of how many versions the trained tokens lag behind, from the number of tokens by age."""
    total = sum(ages.values())
    if not total:
        return {}
    mean = sum(age * count for age, count in ages.items()) / total
    shares = {str(age): count / total for age, count in sorted(ages.items())}
    return {"mean": mean, "max": float(max(ages)), **shares}
