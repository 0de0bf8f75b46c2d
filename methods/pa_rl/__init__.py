"""PA-RL: a critic selects the responses that are played, and the policy imitates them (arXiv 2412.06685)."""

from __future__ import annotations

from methods.pa_rl.options import PaRlOptions
from triforge.algorithms.presets import BINARY
from triforge.methods import Method, Strategy

METHOD = Method(
    name="pa_rl",
    options=PaRlOptions,
    presets={
        "pa_rl": {**BINARY, "job": "distil", "kl_beta": 0.0, "aggregation": "token_mean"},
    },
    strategy=Strategy(part="methods.pa_rl.best_of_k:BestOfKRollouts", draws_policy=False),
    loop="methods.pa_rl.loop:PaRl",
)
