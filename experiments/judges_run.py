"""One run of a policy that learns from outcomes alone; on the same episodes, a judge for each target."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from environments.household.family import FAMILY
from experiments.judges import JudgesSettings, targets_of
from experiments.loop import Run
from experiments.model import LocalModel
from experiments.vote_quality import Row, rows_of
from services.trainer.credit.options import SampleOptions
from services.trainer.credit.samples import Samples, build_samples
from services.trainer.learner.learner import Learner
from services.trainer.loop.hooks import Measures
from triforge.config import RunConfig, parse
from triforge.types import JudgedGroup, TrainRow, Trajectory


@dataclass
class _Pupil:
    """A judge that is trained towards a target."""

    config: RunConfig
    learner: Learner
    model: LocalModel
    version: int = 0
    rows: list[int] = field(default_factory=list)  # trained on, step by step


class JudgesRun(Run):
    """The policy's run; `tasks` of its result counts the rows that each judge was trained on."""

    async def _measure(self) -> Sequence[str]:
        arm, settings, reward = self._arm, self._settings, self._models.reward
        assert isinstance(settings, JudgesSettings)
        self._pupils: dict[str, _Pupil] = {}
        self._shown: dict[str, list[JudgedGroup]] = {}  # of the first and of the last step
        with ExitStack() as stack:

            def served() -> LocalModel:
                model = LocalModel(reward, rows=128)
                stack.callback(model.stop)
                return model

            self._untrained = served()
            for target, options in targets_of(arm).items():
                config = parse(settings.judge(arm, self._seed, self._paths, options))
                self._pupils[target] = _Pupil(config, Learner.fresh(reward), served())
            names = await super()._measure()
        self._result.tasks = {name: {"rows": pupil.rows} for name, pupil in self._pupils.items()}
        return names

    async def more_samples(
        self, step: int, groups: Sequence[JudgedGroup], samples: Samples
    ) -> tuple[list[TrainRow], Measures]:
        """Train each judge on the step's episodes; the policy gets no rows of it."""
        shown = [self._with_solution(group) for group in groups]
        self._shown = {"first": shown} | self._shown | {"last": shown}
        for pupil in self._pupils.values():
            await self._teach(pupil, step, shown)
        return await super().more_samples(step, groups, samples)

    def _with_solution(self, group: JudgedGroup) -> JudgedGroup:
        """Return the group with the solution that a privileged judge sees."""
        options = self._config.env_adapter.options
        solution = tuple(FAMILY.gold(group.played.task, options) or ())

        def shown(trajectory: Trajectory) -> Trajectory:
            judged = trajectory.measured and trajectory.steps
            return trajectory.model_copy(update={"reference": solution}) if judged else trajectory

        episodes = tuple(map(shown, group.played.trajectories))
        played = group.played.model_copy(update={"trajectories": episodes})
        return group.model_copy(update={"played": played})

    async def _judged(
        self, groups: Sequence[JudgedGroup], model: LocalModel, *, privileged: bool = False
    ) -> list[JudgedGroup]:
        config = self._config
        asked = {"votes": config.reward.votes, "judge_sampling": config.models.reward.sampling()}
        if not privileged:
            groups = [_without_solution(group) for group in groups]
        return await asyncio.gather(*(self._voted(one, model.many, **asked) for one in groups))

    async def _teach(self, pupil: _Pupil, step: int, groups: Sequence[JudgedGroup]) -> None:
        algorithm = pupil.config.algorithm.resolved
        judged = await self._judged(groups, pupil.model, privileged=algorithm.needs_reference)
        versions = {"policy": (await self._deployment.models["policy"].weights()).version}
        options = SampleOptions.of(
            pupil.config, step, {**versions, "reward": pupil.version}, trust=1.0
        )
        rows = build_samples(judged, options).rows["reward"]
        pupil.rows.append(len(rows))
        if not rows:
            return
        batch = self._batch("reward", step, rows, pupil.config.trainer.reward)
        own = {"algorithm": algorithm.of_reward_model(), "version": pupil.version}
        await asyncio.to_thread(pupil.learner.train, batch.model_copy(update=own), rows)
        pupil.version += 1
        await pupil.model.serve(pupil.learner.model.module, pupil.version)

    async def _judge_again(self) -> dict[str, list[Row]]:
        """Return votes of the untrained judge and of each trained one on the episodes of the first and the last step."""
        judges = {"judge_first": self._untrained}
        judges |= {f"{target}/judge_last": pupil.model for target, pupil in self._pupils.items()}
        return {
            f"{judge}/policy_{policy}": rows_of(await self._judged(groups, model))
            for judge, model in judges.items()
            for policy, groups in self._shown.items()
        }


def _without_solution(group: JudgedGroup) -> JudgedGroup:
    episodes = [one.model_copy(update={"reference": ()}) for one in group.played.trajectories]
    played = group.played.model_copy(update={"trajectories": tuple(episodes)})
    return group.model_copy(update={"played": played})
