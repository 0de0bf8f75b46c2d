"""StarPO and StarPO-S: whole trajectories compared, and a monitor of collapse (arXiv 2504.20073, 2604.06268)."""

from __future__ import annotations

from methods.starpo.options import StarPOOptions
from triforge.algorithms.presets import CRITIC, HIGHER, OUTCOME
from triforge.methods import Method

METHOD = Method(
    name="starpo",
    options=StarPOOptions,
    default=True,
    presets={
        "starpo": {
            **OUTCOME,
            "invalid_action_penalty": 0.1,
            "entropy_bonus": 0.001,
            "kl_beta": 0.001,
            "kl_estimator": "k1",
            "aggregation": "token_mean",
        },
        "starpo_s": {
            **CRITIC,
            **HIGHER,
            "group_filter": "variance_topk",
            "filter_keep": 0.25,
            "invalid_action_penalty": 0.1,
            "entropy_bonus": 0.001,
            "kl_beta": 0.0,
        },
    },
    loop="methods.starpo.loop:CollapseMonitor",
)
