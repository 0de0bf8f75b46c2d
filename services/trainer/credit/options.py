"""The options of crediting a step: its algorithms, the versions of its models, and the limits of their learners."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from triforge.algorithms.algorithm import Algorithm
from triforge.config import RunConfig
from triforge.rollout.seeds import nth_seed
from triforge.types import TrainedRole


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The limits of a learner: `max_tokens` a row, `max_rows` a step (0 is no limit), samples up to `bound` versions old.

    `response` is the longest response that may be sampled; `aggregation = "step_sum"` divides by it.
    """

    max_tokens: int
    max_rows: int
    bound: int = 0
    response: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleOptions:
    """The options of crediting a step.

    `players` and `judging` are the trained models that play and that judge, each with its version and its learner's limits.
    """

    algorithm: Algorithm
    players: Mapping[TrainedRole, tuple[int, Limits]]
    judging: Mapping[TrainedRole, tuple[int, Limits]]
    pairs: bool = False  # whether the reward model learns from pairs of trajectories
    # of the players with an objective of their own
    algorithms: Mapping[TrainedRole, Algorithm] = field(default_factory=dict)
    seed: int  # of the draw above `max_rows`: a repeated step draws the same
    trust: float = 0.0  # in the votes (`vote_weight = "trust"`)
    vote_share: float = 1.0  # of `lam`, that the votes weigh in this step
    step: int | None = None  # goes on record; None is the groups' own step
    min_measured: int = 1  # rollouts that a group must have measured to be trained on
    drop_stale_votes: bool = False  # credit a group without its votes if one of them is too old

    @classmethod
    def of(
        cls,
        config: RunConfig,
        step: int,
        versions: Mapping[TrainedRole, int],
        trust: float,
        vote_share: float = 1.0,
    ) -> SampleOptions:
        """Return the options of a training step of a run, whose models stand at `versions`."""
        run, models, algorithm = config.run, config.models, config.algorithm.resolved
        if vote_share < 1.0:
            algorithm = algorithm.changed(lam=algorithm.lam * vote_share)
        at = {
            role: (
                versions[role],
                Limits(
                    max_tokens=config.learner(role).max_tokens,
                    max_rows=config.learner(role).max_rows,
                    bound=config.vote_bound if role in models.judging else run.staleness_bound,
                    response=model.max_new_tokens,
                ),
            )
            for role, model in (models.players | models.judging).items()
            if role in versions
        }
        return cls(
            algorithm=algorithm,
            players={role: at[role] for role in models.players},
            judging={role: at[role] for role in models.judging if role in at},
            algorithms={r: config.algorithm_of(r) for r in models.players if config.trainer.job(r)},
            pairs=config.algorithm_of("reward").job_part.pairs,
            seed=nth_seed(run.seed, step),
            trust=trust,
            vote_share=vote_share,
            step=step,
            min_measured=run.min_measured,
            drop_stale_votes=run.stale_votes == "drop",
        )

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers that differ from step to step, for the record."""
        versions = {f"{role}_version": version for role, (version, _) in self.models.items()}
        return {"seed": self.seed, "trust": self.trust, "vote_share": self.vote_share, **versions}

    @property
    def models(self) -> dict[TrainedRole, tuple[int, Limits]]:
        """All of these models."""
        return {**self.players, **self.judging}

    def algorithm_of(self, role: TrainedRole) -> Algorithm:
        """Return the algorithm by which the samples of a model are weighed: a player's own, or the run's."""
        return self.algorithms.get(role, self.algorithm)
