"""iStar: a reward model that learns from pairs of trajectories gives implicit rewards of steps (arXiv 2509.19199)."""

from __future__ import annotations

from methods.istar.options import IStarOptions
from triforge.methods import Method, Scorer

METHOD = Method(
    name="istar",
    options=IStarOptions,
    presets={
        "istar": {
            "estimator": "fused",
            "std_floor": 0.0,
            "std_eps": 1e-6,
            "dual_clip": 3.0,
            "kl_beta": 0.0,
            "aggregation": "token_mean",
        }
    },
    estimators={"fused": "methods.istar.fused:fused"},
    scorer=Scorer(
        part="methods.istar.scores:score",
        casts_votes=False,
        trains_judge=True,
        one_player=True,
        needs_temperature_one=True,
    ),
)
