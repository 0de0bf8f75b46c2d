"""VLM-RL: screenshots compared with goals in words are the reward of each step (arXiv 2412.15544)."""

from __future__ import annotations

from methods.vlm_rl.options import VlmRlOptions
from triforge.algorithms.presets import CRITIC
from triforge.methods import Method, Scorer

METHOD = Method(
    name="vlm_rl",
    options=VlmRlOptions,
    # the scores of screenshots are the whole reward
    presets={"vlm_rl": {**CRITIC, "use_votes": True, "use_outcome": False, "gamma": 0.98}},
    scorer=Scorer(part="methods.vlm_rl.scores:score", casts_votes=False),
)
