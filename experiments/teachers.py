"""Teachers of a judge that need no label: itself with a solution in sight, and several judges together; a part of experiments/results/sparse.md."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from demo.demonstrations import judge_chats, write_demonstrations
from demo.settings import LAPSED, DemoSettings, SupervisedSettings, WarmStart, sparse
from demo.warm_start import alone, judge_of, tiny_models
from environments.household.family import FAMILY
from environments.household.params import PlayOptions, world_of
from experiments.comparison import JUDGED, Comparison
from experiments.judge_data import JUDGE
from experiments.settings import QUICK, Arm
from experiments.sparse import SparseSettings
from experiments.study import Study
from services.reward.scorers.votes import score
from triforge.algorithms.advantages import Rows
from triforge.algorithms.core import CoreOptions
from triforge.algorithms.judge_targets import Judged, judge_target
from triforge.algorithms.registry import NoOptions
from triforge.cli.model_folders import cache_folder
from triforge.environments.rows import object_in, read_file
from triforge.event_loop import together
from triforge.rollout.protocols import GenerateMany
from triforge.types import Criteria, JudgeTask, StepVotes, Trajectory, TrajectoryVotes

SEEDS: Final = (967, 968, 969)
MEMBERS: Final = 3
_HINDSIGHT: Final = MEMBERS  # number of the judge after them
_HERE: Final = "experiments.teachers"
_TEACHER: Final = "teacher"  # among the further judgements of a step
_START: Final = 900  # seed of the judges' training
_SECOND: Final = 50_000  # from the seed of demonstrations to that of those with a solution in sight

WEAK: Final = replace(
    LAPSED,
    judge_data=replace(JUDGE.judge_data, count=6000, reference=False),
    judge=SupervisedSettings(learning_rate=3e-3, batch_rows=96, steps=2000),
)
"""A judge of 0.1 M parameters; half of its demonstrations show a solution (or the whole episode), so it votes with and without."""


# ---- the judges ----


def judges(warm: WarmStart) -> list[Path]:
    """Return the folders of the judges: the members, which differ by their demonstrations and first weights, and that with hindsight.

    They are made if they are not in the cache.
    """
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(_made, [warm] * (MEMBERS + 1), range(MEMBERS + 1)))


def _folder(warm: WarmStart, number: int) -> Path:
    """Return the folder of a judge in the cache, made or not."""
    parts = json.dumps([asdict(warm), _START + number], sort_keys=True)
    return cache_folder() / "demo" / f"judge-{hashlib.sha256(parts.encode()).hexdigest()[:12]}"


def _made(warm: WarmStart, number: int) -> Path:
    folder = _folder(warm, number)
    with alone(folder), TemporaryDirectory() as work:
        if not folder.is_dir():
            settings = sparse(_START + number, warm)
            shows = "episode" if number == _HINDSIGHT else "reference"
            judge_of(settings, [_further(settings, Path(work), shows)], folder)
    return folder


def _further(settings: DemoSettings, folder: Path, shows: str) -> Path:
    """Write as many demonstrations again, of other tasks, with a solution in sight (`reference`) or the whole episode."""
    fields = asdict(settings.warm_start.judge_data) | {"reference": shows == "reference"}
    generate = fields.pop("generate") or settings.generate
    write_demonstrations(
        folder,
        seed=settings.seed + _SECOND,
        generate=generate,
        options=settings.options,
        **fields,
    )
    path, hindsight = folder / "judge.jsonl", {"hindsight": shows == "episode"}
    with path.open("w", encoding="utf-8") as file:
        for number, shown in enumerate(read_file(folder / "transcripts.jsonl", object_in)):
            for chat in judge_chats(shown | hindsight):
                file.write(json.dumps({"messages": chat, "group": f"{shows}-{number}"}) + "\n")
    return path


# ---- votes and targets ----


async def by_reference(
    trajectory: Trajectory, task: JudgeTask, generate_many: GenerateMany
) -> TrajectoryVotes:
    """Vote without a solution; the teacher's word is the votes of the same judge with one in sight."""
    seen = trajectory.model_copy(
        update={"criteria": Criteria(reference=_reference(trajectory.task_id))}
    )
    return _taught(
        await score(trajectory, task, generate_many), [await score(seen, task, generate_many)]
    )


@dataclass(frozen=True, slots=True)
class Members:
    """Several judges that nothing trains.

    Attributes:
        asked: returns what samples from each of them.
    """

    asked: Callable[[], Sequence[GenerateMany]]

    async def cast(
        self,
        trajectory: Trajectory,
        task: JudgeTask,
        generate_many: GenerateMany,  # noqa: ARG002 (the members vote alone)
    ) -> TrajectoryVotes:
        """Cast a vote of each member."""
        first, *others = await self._votes(trajectory, task.model_copy(update={"votes": 1}))
        steps = zip(first.steps, *(one.steps for one in others), strict=True)
        return first.model_copy(update={"steps": tuple(map(_together, steps))})

    async def teach(
        self, trajectory: Trajectory, task: JudgeTask, generate_many: GenerateMany
    ) -> TrajectoryVotes:
        """Vote; the teacher's word is the votes of all members."""
        own = await score(trajectory, task, generate_many)
        return _taught(own, await self._votes(trajectory, task))

    async def _votes(self, trajectory: Trajectory, task: JudgeTask) -> Sequence[TrajectoryVotes]:
        return await together(score(trajectory, task, ask) for ask in self.asked())


def _together(parts: Sequence[StepVotes]) -> StepVotes:
    """Return the votes on one step as those of one judge."""
    votes = tuple(vote for part in parts for vote in part.votes)
    return parts[0].model_copy(update={"votes": votes})


@cache
def _members() -> list[GenerateMany]:
    from experiments.model import LocalModel  # noqa: PLC0415  torch

    return [LocalModel(folder, role="reward").many for folder in judges(_PLAYED.weak)[:MEMBERS]]


of_members = Members(_members).cast
by_members = Members(_members).teach


@cache
def _reference(task_id: str) -> str:
    from experiments.loop import read_task  # noqa: PLC0415  torch

    world = world_of(read_task(task_id).params)
    return "\n".join(FAMILY.solution(world, PlayOptions(**_PLAYED.options)) or ())


def _taught(own: TrajectoryVotes, teachers: Sequence[TrajectoryVotes]) -> TrajectoryVotes:
    """Add the mean vote of the teachers to each step."""
    words: dict[int, list[int]] = {}
    for teacher in teachers:
        for step in teacher.steps:
            words.setdefault(step.step, []).extend(vote.value for vote in step.votes)
    steps = tuple(
        step.model_copy(update={"extra": {_TEACHER: sum(words[step.step]) / len(words[step.step])}})
        for step in own.steps
    )
    return own.model_copy(update={"steps": steps})


@judge_target(_TEACHER)
def target(judged: Judged, _: CoreOptions, __: NoOptions) -> Rows:
    """Return the teacher's mean vote on each step."""
    return [[step.get(_TEACHER) for step in steps] for steps in judged.extra]


# ---- the study ----


def _arm(
    title: str, kind: str = "votes", *, shows: Sequence[str] = (), taught: bool = False
) -> Arm:
    """Return an arm by what votes and whether the judge learns from the teacher's word; labels of a tenth of the rollouts only measure it."""
    reward = {"kind": kind, "shows": list(shows)}
    target = {"judge_target": f"{_HERE}:target"} if taught else {"train_reward_model": False}
    return Arm(title=title, config={"reward": reward, "options": target})


ARMS: Final = {
    "blind": _arm("votes without a solution in sight, the judge frozen"),
    "sighted": _arm("votes with a solution in sight, the judge frozen", shows=["reference"]),
    "hindsight": _arm("votes of another judge with the whole episode in sight, frozen", shows=["episode"]),
    "by_reference": _arm("`blind`, taught by the same judge with a solution in sight", f"{_HERE}:by_reference", taught=True),
    "ensemble": _arm("a vote of each of three judges, all frozen", f"{_HERE}:of_members"),
    "by_ensemble": _arm("`blind`, taught by three judges, which are frozen", f"{_HERE}:by_members", taught=True),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TeacherSettings(SparseSettings):
    """How much is played: the tasks and policies of sparse outcomes, and weaker judges, which read prompts with a solution and without."""

    judge: str = ""
    weak: WarmStart = WEAK

    def models(self, seed: int, tell: Callable[[str], None]) -> tuple[Path, Path]:
        """Return the policy of the seed, and the first of the judges."""
        return tiny_models(self.warm_start(seed), tell)[0], judges(self.weak)[0]

    def short(self) -> TeacherSettings:
        """As little as shows that everything runs."""
        little = super().short()
        assert isinstance(little, TeacherSettings)
        return replace(little, weak=QUICK)

    def document(self, arm: Arm, seed: int, models: Mapping[str, str]) -> dict[str, Any]:
        """Return the run's configuration: that of sparse outcomes with three votes a step, and the arm's judge."""
        options = {"estimator": "within", "lam": 0.4, "reward_band": "none"} | arm.config["options"]
        sections = {"methods": {"audit": {"anchors": 1.0}}}
        played = Arm(title=arm.title, config={"options": options, "sections": sections})
        document = super().document(played, seed, models)
        document["reward"] |= {"votes": MEMBERS, **arm.config["reward"]}
        if "episode" in arm.config["reward"]["shows"]:
            document["models"]["reward"]["path"] = str(_folder(self.weak, _HINDSIGHT))
        return document


_PLAYED: Final = TeacherSettings()
STUDY: Final = Study(
    name="teachers",
    arms=ARMS,
    seeds=SEEDS,
    full=_PLAYED,
    quick=_PLAYED.short(),
    smoke=("by_reference",),
    compared=Comparison(
        name="teachers",
        title="Teachers of a judge that need no label",
        known="whether a judge learns from itself with a solution in sight, or from several judges together",
        arms=ARMS,
        main=tuple(ARMS),
        planned=(),
        pairs=tuple((arm, "blind") for arm in ARMS if arm != "blind"),
        tuned=(),
        measures={
            "sampled": "held-out success, mean of the evaluations after steps 5, 10, 15 and 20"
        },
        played=JUDGED,
    ),
)
