"""SPARK: the policy is its own judge and learns from questions about finished rollouts (arXiv 2509.22624)."""

from __future__ import annotations

from methods.spark.options import SparkOptions
from triforge.algorithms.presets import BINARY
from triforge.methods import Method

METHOD = Method(
    name="spark",
    options=SparkOptions,
    presets={"spark": {**BINARY, "kl_beta": 0.001, "aggregation": "token_mean"}},
    loop="methods.spark.loop:Spark",
    environment="methods.spark.environment:environment",
)
