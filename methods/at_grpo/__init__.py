"""AT-GRPO: candidates for one turn of one agent, drawn and compared in one state (arXiv 2510.11062)."""

from __future__ import annotations

from methods.at_grpo.options import AtGrpoOptions
from triforge.algorithms.presets import OUTCOME
from triforge.methods import Method, Strategy

METHOD = Method(
    name="at_grpo",
    options=AtGrpoOptions,
    presets={
        "at_grpo": {
            **OUTCOME,
            "estimator": "branch",
            "kl_beta": 0.0,
            "aggregation": "token_mean",
        }
    },
    estimators={"branch": "methods.at_grpo.branch:branch"},
    strategy=Strategy(part="methods.at_grpo.tree:TreeRollouts", siblings=True),
)
