"""Pairwise judge: the reward model says which of two rollouts of a task is better; its verdicts score both."""

from __future__ import annotations

from triforge.methods import Method, Scorer

METHOD = Method(
    name="pairwise",
    presets={"pairwise": {"use_votes": True, "train_reward_model": False}},
    scorer=Scorer(
        part="methods.pairwise.comparing:Pairwise",
        casts_votes=False,
        by_group=True,
        shows_task=True,
    ),
)
