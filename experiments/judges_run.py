"""One run of a policy that learns from outcomes alone; on the same episodes, a judge for each target."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from environments.household.family import FAMILY
from experiments.judges import JudgesSettings, targets_of
from experiments.loop import Run, limits_of
from experiments.loop import play as play_run
from experiments.model import LocalModel
from experiments.record import Models, Result, Tell, silent
from experiments.settings import Arm, Settings
from experiments.vote_quality import Row, rows_of
from services.trainer.credit.options import SampleOptions
from services.trainer.credit.samples import build_samples
from services.trainer.learner.learner import Learner
from triforge.algorithms.algorithm import Algorithm
from triforge.config import LearnerSection, parse
from triforge.rollout.episode import judge_task
from triforge.rollout.seeds import nth_seed
from triforge.types import JudgedGroup, Trajectory


@dataclass
class _Pupil:
    """A judge on its way to a target."""

    algorithm: Algorithm
    section: LearnerSection
    learner: Learner
    model: LocalModel
    version: int = 0
    rows: list[int] = field(default_factory=list)  # trained on, step by step


class JudgesRun(Run):
    """The policy's run; `tasks` of its result counts the rows that each judge was trained on."""

    def __init__(self, name: str, arm: Arm, seed: int, settings: Settings, models: Models, folder: Path, tell: Tell) -> None:  # fmt: skip
        super().__init__(name, arm, seed, settings, models, folder, tell)
        assert isinstance(settings, JudgesSettings)
        paths = {"policy": str(models.policy), "reward": str(models.reward), "rewriter": ""}
        self._untrained = LocalModel(models.reward, rows=128)
        self._pupils: dict[str, _Pupil] = {}
        self._kept: dict[str, list[JudgedGroup]] = {}  # of the first and of the last step
        for target, options in targets_of(arm).items():
            config = parse(settings.judge(arm, seed, paths, options))
            self._pupils[target] = _Pupil(
                config.algorithm.resolved, config.trainer.reward,
                Learner.fresh(models.reward), LocalModel(models.reward, rows=128),
            )  # fmt: skip
        self._models |= {self._untrained, *(pupil.model for pupil in self._pupils.values())}

    async def play(self) -> Result:
        """Return the whole run."""
        result = await super().play()
        result.tasks = {target: {"rows": pupil.rows} for target, pupil in self._pupils.items()}
        self._tell({"tasks": result.tasks})
        return result

    async def _train(self, step: int, groups: list[JudgedGroup], trust: float) -> dict[str, float]:
        measures = await super()._train(step, groups, trust)
        shown = await asyncio.gather(*map(self._shown, groups))
        self._kept = {"first": shown} | self._kept | {"last": shown}
        for pupil in self._pupils.values():
            await self._teach(pupil, step, shown)
        return measures

    async def _shown(self, group: JudgedGroup) -> JudgedGroup:
        """With labels, and the solution that a privileged judge sees."""
        task = await self._tasks.read(group.played.task.id)
        solution = tuple(FAMILY.gold(task, self._config.env_adapter.options) or ())

        async def shown(trajectory: Trajectory) -> Trajectory:
            if not (trajectory.measured and trajectory.steps):
                return trajectory
            labelled = await self._truth.labelled(trajectory)
            return labelled.model_copy(update={"reference": solution})

        found = await asyncio.gather(*map(shown, group.played.trajectories))
        played = group.played.model_copy(update={"trajectories": tuple(found)})
        return group.model_copy(update={"played": played})

    async def _voted(
        self, group: JudgedGroup, model: LocalModel, *, privileged: bool = False
    ) -> JudgedGroup:
        config = self._config
        asked = {"votes": config.reward.votes, "judge_sampling": config.models.reward.sampling()}
        task = group.played.group.model_copy(update=asked)
        hidden = {} if privileged else {"reference": ()}
        votes = await asyncio.gather(
            *(
                self._score(t.model_copy(update=hidden), judge_task(task, t.index), model.many)
                for t in group.played.trajectories
            )
        )
        return group.model_copy(update={"votes": tuple(votes)})

    async def _teach(self, pupil: _Pupil, step: int, groups: list[JudgedGroup]) -> None:
        asks = pupil.algorithm.needs_reference
        judged = await asyncio.gather(
            *(self._voted(group, pupil.model, privileged=asks) for group in groups)
        )
        limits = limits_of(pupil.section)
        options = SampleOptions(
            algorithm=pupil.algorithm, players={"policy": (self._versions["policy"], limits)},             judging={"reward": (pupil.version, limits)}, seed=nth_seed(self._config.run.seed, step),
        )  # fmt: skip
        rows = build_samples(judged, options).rows["reward"]
        pupil.rows.append(len(rows))
        if not rows:
            return
        batch = self._batch("reward", step, rows, pupil.section)
        own = {"algorithm": pupil.algorithm.of_reward_model(), "version": pupil.version}
        pupil.learner.train(batch.model_copy(update=own), rows)
        pupil.version += 1
        await pupil.model.serve(pupil.learner.model.module, pupil.version)

    async def _judge_again(self) -> dict[str, list[Row]]:
        """Votes of the untrained judge and of each trained one on the episodes of the first and the last step."""
        judges = {"judge_first": self._untrained}
        judges |= {f"{target}/judge_last": pupil.model for target, pupil in self._pupils.items()}
        found: dict[str, list[Row]] = {}
        for who, model in judges.items():
            for whose, groups in self._kept.items():
                again = await asyncio.gather(*(self._voted(group, model) for group in groups))
                found[f"{who}/policy_{whose}"] = rows_of(again)
        return found


def play(
    name: str, arm: Arm, seed: int, settings: Settings, models: Models, *, tell: Tell = silent
) -> Result:
    """Play one run in this process."""
    return play_run(name, arm, seed, settings, models, tell=tell, make=JudgesRun)
