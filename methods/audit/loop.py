"""The judge's part of a step: learn from labels, then be measured on anchors.

    play ─► audited rollouts ─► rows, with those of earlier steps ─► train, publish ─► anchors judged by the new version ─► refused?

A refused version serves no vote: before the next step the run goes back to the one before, whose optimiser state the learner goes
on from, as after a rollback by a person. The first version cannot be refused, because the model that a run begins with has no
checkpoint to go back to. A repeated step gives the same: rows and anchors of a step are files that are written again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, TypeAdapter

from methods.audit.labelled import SIGNS, answers, audited, errors, right_share, rows, scaled
from methods.audit.options import AuditOptions
from methods.audit.promotion import compare
from services.reward.scorers.votes import score
from services.trainer.credit.samples import Samples
from services.trainer.loop.hooks import LoopHooks, Measures, MethodContext
from services.trainer.runs.rollback import Versions
from triforge.algorithms.judge_targets.label import draw
from triforge.event_loop import together
from triforge.rollout.episode import judge_task
from triforge.store.rows import read_rows, write_rows
from triforge.types import (
    JudgedGroup,
    JudgeTask,
    TrainBatch,
    TrainedRole,
    TrainRow,
    Trajectory,
    WeightsState,
    WeightsUpdate,
)

log = logging.getLogger(__name__)


class _Anchor(BaseModel):
    """A rollout that measures the judge; `right` is the share of right votes when it was played."""

    trajectory: Trajectory
    task: JudgeTask
    right: float


_ANCHORS = TypeAdapter(list[_Anchor])


class Audit(LoopHooks):
    """Trains the judge on labels, and takes back a version that judges worse."""

    options: AuditOptions

    def __init__(self, run: MethodContext, options: AuditOptions) -> None:
        super().__init__(run, options)
        run.notes.setdefault("answers", {})  # tokens of a vote, by its value
        run.notes.setdefault("right", {})  # by anchor, of the version in use
        self._standing: WeightsState | None = None
        self._measures: Measures = {}

    async def begin(self, step: int, versions: Mapping[TrainedRole, int]) -> None:
        """Remember the version that the step is judged by."""
        self._standing = await self.run.parts.apis["reward"].weights()

    async def more_samples(
        self, step: int, groups: Sequence[JudgedGroup], samples: Samples
    ) -> list[TrainRow]:
        """Replace the judge's rows by the labels of this step and of those kept."""
        share = self.run.config.reward.audit_share
        found = audited(groups, share=share, anchors=self.options.anchors)
        self._measures = errors(found) | {"audit/rollouts": float(len(found))}
        if not self.run.config.algorithm.resolved.train_reward_model:
            return []
        answered: dict[str, list[int]] = self.run.notes["answers"]
        for value, ids in answers(groups).items():
            answered.setdefault(str(value), list(ids))
        known = {sign: tuple(answered.get(str(sign), ())) for sign in SIGNS}
        anchors = [one for one in found if one.anchor]
        taught = rows([one for one in found if not one.anchor], known)
        held = [
            _Anchor(trajectory=a.trajectory, task=judge_task(a.group.played.group, _index(a)), right=a.right or 0.0)
            for a in anchors
        ]  # fmt: skip
        samples.rows["reward"] = await asyncio.to_thread(self._keep, step, taught, held)
        self._measures |= {
            "audit/labels": float(len(taught)),
            "audit/rows": float(len(samples.rows["reward"])),
        }
        return []

    async def measure(self, step: int, groups: Sequence[JudgedGroup], samples: Samples) -> Measures:
        """Return the measures of the audited rollouts."""
        return self._measures

    async def batch(self, step: int, batch: TrainBatch) -> TrainBatch:
        """Have the judge imitate its rows."""
        if batch.role != "reward":
            return batch
        plain = {"kl_beta": 0.0, "entropy_bonus": 0.0, "aggregation": "token_mean"}
        learner = batch.learner.model_copy(update={"updates_per_step": self.options.updates})
        algorithm = batch.algorithm.of_job("ce").changed(**plain)
        return batch.model_copy(update={"algorithm": algorithm, "learner": learner})

    async def after_step(self, step: int, measures: Mapping[str, float]) -> Measures:
        """Have a new version judge the anchors; one that judges worse than the version before goes back to it."""
        api, before = self.run.parts.apis["reward"], self._standing
        anchors = await asyncio.to_thread(self._anchors, step)
        if before is None or not anchors:
            return {"audit/anchors": 0.0}
        standing = {a.trajectory.id: a.right for a in anchors} | self.run.notes["right"]
        now = await api.weights()
        found = {"audit/anchors": float(len(anchors))}
        if now.version == before.version:
            self.run.notes["right"] = {a.trajectory.id: standing[a.trajectory.id] for a in anchors}
            return found
        votes = await together(score(a.trajectory, a.task, api.generate_many) for a in anchors)
        shares = {
            a.trajectory.id: right_share(a.trajectory, cast) or 0.0
            for a, cast in zip(anchors, votes, strict=True)
        }
        result = compare(standing, shares)
        folders = Versions(
            self.run.parts.store, self.run.parts.artifacts, self.run.run_id, "reward"
        )
        can_go_back = folders.number(before.uri) is not None
        refused = can_go_back and result.refused(self.options.error, self.run.config.run.steps)
        if refused:
            log.warning(
                "step %d: version %d of the judge is refused: worse on %d anchors, better on %d (p %.2g)",
                step, now.version, result.worse, result.better, result.p,
            )  # fmt: skip
            recorded = await asyncio.to_thread(
                self.run.parts.store.find_weights, self.run.run_id, "reward", before.version
            )
            uri, digest = recorded or (before.uri, "")
            update = WeightsUpdate(version=now.version + 1, uri=uri, digest=digest)
            await api.update_weights(update)
        kept = standing if refused else shares
        self.run.notes["right"] = {a.trajectory.id: kept[a.trajectory.id] for a in anchors}
        mean = sum(shares.values()) / len(shares)
        earlier = sum(standing[name] for name in shares) / len(shares)
        return found | {
            "audit/anchors_right": mean, "audit/anchors_right_before": earlier, "audit/worse": float(result.worse),
            "audit/better": float(result.better), "audit/refused": float(refused),
        }  # fmt: skip

    # ---- files ----

    def _keep(self, step: int, taught: list[TrainRow], anchors: list[_Anchor]) -> list[TrainRow]:
        """Write the labels and anchors of a step; return the rows that the judge is trained on."""
        artifacts = self.run.parts.artifacts
        write_rows(artifacts, self._name(step, "parquet"), taught)
        artifacts.write(self._name(step, "json"), _ANCHORS.dump_json(anchors))
        if step % self.options.train_every:
            return []
        first = max(1, step - self.options.keep_steps)
        names = [self._name(number, "parquet") for number in range(first, step)]
        earlier = [read_rows(artifacts, name) for name in names if artifacts.exists(name)]
        return scaled([*(row for part in earlier for row in part), *taught])

    def _anchors(self, step: int) -> list[_Anchor]:
        """Return the anchors of all steps, at most `most_anchors`: the newest half, and others by lot."""
        artifacts = self.run.parts.artifacts
        names = [self._name(number, "json") for number in range(1, step + 1)]
        files = [_ANCHORS.validate_json(artifacts.read(n)) for n in names if artifacts.exists(n)]
        found = [anchor for part in files for anchor in part]
        newest = found[-(self.options.most_anchors // 2) :]
        others = sorted(found[: -len(newest)], key=lambda a: draw(f"keep {a.trajectory.id}"))
        return [*others[: self.options.most_anchors - len(newest)], *newest]

    def _name(self, step: int, kind: str) -> str:
        return f"runs/{self.run.run_id}/audit/{step:05d}.{kind}"


def _index(one: Any) -> int:
    """Return the number of a rollout in its group."""
    names = [trajectory.id for trajectory in one.group.played.trajectories]
    return names.index(one.trajectory.id)
