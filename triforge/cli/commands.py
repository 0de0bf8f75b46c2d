"""All commands: where each is, and what `triforge --help` says of it. Its own page is the docstring of its function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "train": (
        "train:train",
        "Train a model on an environment: start what it takes, show progress, say how it ended and where the model lies.",
    ),
    "eval": (
        "evaluate:evaluate",
        "Play a pool's held-out tasks with a model, train nothing, and say how often it succeeded.",
    ),
    "up": (
        "up:up",
        "Start every service, the workers, the engines and Valkey on this machine; Ctrl-C stops them.",
    ),
    "status": (
        "status:status",
        "What serves, what is ready, and the newest runs. Exit code 1 when a service is not ready.",
    ),
    "logs": ("status:logs", "The newest lines of the logs of `triforge up`; Ctrl-C ends it."),
    "doctor": (
        "doctor:doctor",
        "Find what keeps an installation from working, and say how to mend it. Exit code 1 if something does.",
    ),
    "replay": (
        "replay:replay",
        "Recompute rewards, advantages, losses and gradients of a run from its record and compare; starts no engine.",
    ),
    "run": ("runs:run_app", "Runs."),
    "pool": ("pools:pool_app", "Task pools."),
    "task": ("pools:task_app", "Tasks and their versions."),
    "proposal": ("pools:proposal_app", "Rewrites of tasks."),
    "env": ("environments:env_app", "Environments."),
    "agent": ("agent:agent_app", "Agents of yours."),
    "key": ("keys:key_app", "API keys."),
}
