"""On-policy distillation: a teacher scores each token that the policy samples (Lu, Thinking Machines, 2025; arXiv 2306.13649)."""

from __future__ import annotations

from methods.opd.options import OpdOptions
from triforge.algorithms.presets import OUTCOME
from triforge.methods import Method, Scorer

METHOD = Method(
    name="opd",
    options=OpdOptions,
    presets={
        "opd": {
            **OUTCOME,
            "estimator": "opd",
            "use_votes": True,
            "use_outcome": False,
            "kl_beta": 0.0,
            "aggregation": "token_mean",
        }
    },
    estimators={"opd": "methods.opd.credit:opd"},
    scorer=Scorer(
        part="methods.opd.scores:score",
        casts_votes=False,
        frozen=True,
        one_player=True,
        needs_temperature_one=True,
    ),
    loop="methods.opd.loop:Opd",
)
