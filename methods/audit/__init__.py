"""Audit: the judge learns from labels of a share of each step's rollouts, and a version that judges worse is not used."""

from __future__ import annotations

from methods.audit.options import AuditOptions
from triforge.methods import Method

METHOD = Method(
    name="audit",
    options=AuditOptions,
    presets={
        "audited": {"estimator": "within", "lam": 0.4, "judge_target": "label", "reward_band": None}
    },
    loop="methods.audit.loop:Audit",
)
