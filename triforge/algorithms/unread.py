"""Options that are turned although nothing reads them: somebody believes that they do something.

A preset may set more than a change of another option leaves in use, so only what was given and differs from both the preset
and the default is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from triforge.algorithms.presets import Preset


class Unread(NamedTuple):
    """Options that a combination does not read, what it is, what would read them, and why it does not."""

    options: tuple[str, ...]
    holds: bool
    given: str
    allowed: str
    why: str


def unread(p: Preset, given: Iterable[str]) -> str | None:
    """The sentence that refuses the first of the given options that nothing reads, or None.

    Args:
        p: the combination.
        given: names of the options that were turned.
    """
    turned = set(given)
    for rule in (*_policy_rules(p), *_vote_rules(p)):
        for option in rule.options if rule.holds else ():
            if option in turned:
                value = getattr(p, option)
                return f"{option}: given {value} with {rule.given}, allowed only with {rule.allowed}: {rule.why}"
    return None


def _policy_rules(p: Preset) -> tuple[Unread, ...]:
    plain = not p.whiten and p.estimator != "fused"
    return (
        Unread(
            ("filter_keep",), p.group_filter == "none",
            "group_filter = 'none'", "'variance_topk' or 'variance_topp'", "all groups are kept",
        ),
        Unread(
            ("clip_low", "clip_high"), p.loss in ("reinforce", "sapo"),
            f"loss = '{p.loss}'", "'ppo', 'gspo', 'gspo_token' or 'cispo'", "it clips no ratio",
        ),
        Unread(
            ("log_ratio_clamp",), p.loss == "reinforce" and not p.kl_weighted,
            "loss = 'reinforce'", "another loss or kl_weighted = true", "it has no ratio",
        ),
        Unread(
            ("kl_estimator", "kl_clamp"), p.kl_beta == 0.0,
            "kl_beta = 0", "kl_beta above 0", "there is no KL term",
        ),
        Unread(
            ("kl_gain",), p.kl_target is None,
            "kl_target = none", "a kl_target", "the weight of the KL term stays as it is",
        ),
        Unread(
            ("kl_reference",), p.kl_beta == 0.0 and p.job != "dpo_pair",
            "kl_beta = 0", "kl_beta above 0 or job = 'dpo_pair'", "nothing is compared with an anchor",
        ),
        Unread(
            ("std_eps",), plain and p.normalise not in ("std", "relative"),
            f"normalise = '{p.normalise}'", "'std', 'relative' or whiten = true", "nothing is divided by a deviation",
        ),
        Unread(
            ("off_policy_veto",), p.off_policy in ("none", "bypass"),
            f"off_policy = '{p.off_policy}'", "'auto', 'decoupled', 'tis' or 'mis'", "no ratio is looked at",
        ),
        Unread(
            ("acceptance_alpha",), p.acceptance == "paper",
            "acceptance = 'paper'", "'confident'", "two accuracies are compared once, without a test",
        ),
    )  # fmt: skip


def _vote_rules(p: Preset) -> tuple[Unread, ...]:
    return (
        Unread(
            ("vote_share",), p.vote_weight == "constant",
            "vote_weight = 'constant'", "'trust'", "the votes weigh what lam says",
        ),
        Unread(
            ("invalid_vote_margin",), p.invalid_votes == "pooled",
            "invalid_votes = 'pooled'", "'apart'", "unparsable votes are compared with the others by invalid_vote_reward",
        ),
        Unread(
            ("vote_scope", "drop_unanimous", "invalid_votes", "invalid_vote_margin", "reinforce_unrewarded_votes"),
            not p.train_reward_model, "train_reward_model = false", "true", "no vote is trained on",
        ),
        Unread(  # "none" keeps everything, which is true of nothing as well
            ("reward_band",), not p.train_reward_model and p.reward_band is not None,
            "train_reward_model = false", "true (or 'none')", "no vote is trained on",
        ),
    )  # fmt: skip
