"""RLVE: fresh tasks from a window of difficulty levels that moves up with the policy (arXiv 2511.07317)."""

from __future__ import annotations

from methods.rlve.options import RlveOptions
from triforge.algorithms.presets import HIGHER, OUTCOME
from triforge.methods import Controller, Method

METHOD = Method(
    name="rlve",
    options=RlveOptions,
    presets={"rlve": {**OUTCOME, **HIGHER, "kl_beta": 0.0, "off_policy": "tis", "refills": 10}},
    loop="methods.rlve.loop:Rlve",
    controller=Controller(part="methods.rlve.controller:LadderController", needs_levels=True),
)
