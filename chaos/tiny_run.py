"""A run that random models of whole words can play and learn from: what whole deployments are tested with."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

# The words of the constrained answers: a model of words can only say what its vocabulary has.
_ANSWERS: Final = (
    "goal:", "place,", "object:", "target:", "hint:", "yes,", "no,", "room:", "same", "all", "add", "remove", "to", "horizon",
    *map(str, range(1, 100)), r"\boxed{1}", r"\boxed{-1}", ";", ">", "?",
)  # fmt: skip
_DOCUMENT: Final = """
[run]
steps = {steps}
groups_per_step = 4
eval_every = 100
eval_tasks = {eval_tasks}
step_deadline_s = {step_deadline_s}

[models.policy]
path = "{model}"
max_new_tokens = 4

# held to its two words and hot: a random judge votes both ways in every step, so both models always have something to learn
[models.reward]
path = "{model}"
max_new_tokens = 2
temperature = 5.0
regex = ' ?\\\\boxed\\{{-?1\\}}'

[models.rewriter]
path = "{model}"
max_new_tokens = 32

[env_adapter]
rollouts = 4
max_steps = 4

[env_adapter.options]
wording = "terse"

[reward]
votes = 2
prompt = "terse"

[adaptation]
max_pending = 1
candidates = 2
diagnosis_tokens = 4
max_rollouts = 16

[trainer.policy]
learning_rate = 1e-3
updates_per_step = {updates}

[trainer.reward]
learning_rate = 1e-3
updates_per_step = {updates}

[algorithm]
preset = "rlanything"

# random weights never succeed; without the band the judge's learner works all the same
[algorithm.overrides]
reward_band = "none"
"""


def tiny_words(values: Iterable[str]) -> list[str]:
    """Return the vocabulary of a model that plays, judges and rewrites tasks in these words."""
    listed = [*values]
    return sorted({*listed, *(f"{value}," for value in listed), *_ANSWERS})


def tiny_run(
    model: Path, *, steps: int, eval_tasks: int, updates: int, step_deadline_s: int = 1800
) -> str:
    """Return the TOML document of a run in which one model has all three roles."""
    return _DOCUMENT.format(
        model=model, steps=steps, eval_tasks=eval_tasks, updates=updates, step_deadline_s=step_deadline_s
    )  # fmt: skip
