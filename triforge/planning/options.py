"""The options of an engine that follow from the run: adapters, and memory that it lends."""

from __future__ import annotations

from collections.abc import Iterable

from triforge.config import RunConfig
from triforge.config.training import LearnerSection
from triforge.types import Role


def served_learners(config: RunConfig, role: Role) -> list[LearnerSection]:
    """Return the learners of the models that the engines of a role serve."""
    roles = (r for r in config.trained if role in (r, getattr(config.models, r).engines_of))
    return [config.learner(r) for r in roles]


def lora_options(config: RunConfig, role: Role, linear: Iterable[str]) -> list[str]:
    """Return the options for the adapters that the engines of a role serve; none if they serve whole models.

    Both engines want the modules, all `linear` ones unless the run names some. vLLM's own have lm_head, and it ends when a prompt is scored
    with an adapter that may have it.
    """
    learners = [learner for learner in served_learners(config, role) if learner.lora_rank]
    if not learners:
        return []
    modules = {module for learner in learners for module in learner.lora_targets or linear}
    rank = max(learner.lora_rank for learner in learners)
    return ["--enable-lora", f"--max-lora-rank={rank}", "--lora-target-modules", *sorted(modules)]


def sglang_options(config: RunConfig, role: Role, linear: Iterable[str]) -> list[str]:
    """Return SGLang's options for adapters, and for taking turns on a card."""
    lora = lora_options(config, role, linear)
    options = [*lora, *["--max-loras-per-batch=4"] * bool(lora)]
    return options + ["--enable-memory-saver"] * config.run.colocate
