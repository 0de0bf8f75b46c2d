"""Jobs: what a model is trained for, `algorithm.job`. See docs/methods.md.

A job is known here by its properties and by how it weighs rollouts; its gradient is an objective of the learner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from triforge.algorithms.registry import NoOptions, Options, Registry

Weigh = Callable[[Sequence[int | None], Sequence[Sequence[float | None]], Any], Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One job.

    Attributes:
        weigh: from the outcomes and step rewards of a task's rollouts, and the options, to `ScoredRows` that say how much each
            step is imitated; None for a job that trains by advantages.
        fixes: core options that the job sets where one model has it and the others have another.
        needs_success: it reads which episodes succeed; scores alone are not enough.
        pairs: it compares whole trajectories of a task in pairs of a success and a failure.
        trains_policy: whether the policy changes; otherwise its critic alone is trained.
        corrects: whether `off_policy = "auto"` corrects samples of older weights.
    """

    name: str
    options: type[Options] = NoOptions
    weigh: Weigh | None = None
    fixes: Mapping[str, Any] = field(default_factory=dict)
    needs_success: bool = False
    pairs: bool = False
    trains_policy: bool = True
    corrects: bool = False

    @property
    def imitates(self) -> bool:
        """Whether the policy is trained on its own rollouts and not by advantages."""
        return self.weigh is not None

    @property
    def reads_loss(self) -> bool:
        """Whether the job reads the loss of the policy gradient."""
        return self.trains_policy and not self.imitates


class _Jobs(Registry[Job]):
    """The jobs by name. A path, `package.module:Class`, is an objective of the learner that trains by advantages."""

    def find(self, name: str) -> Job:
        """Return the job; a path is not imported here."""
        return Job(name=name) if ":" in name else super().find(name)


JOBS = _Jobs("job", Job, __name__)
