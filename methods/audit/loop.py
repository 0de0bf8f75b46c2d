"""The judge's part of a step: learn from labels, then be measured on anchors.

    play ─► audited rollouts ─► rows, with those of earlier steps ─► train, publish ─► anchors judged by the new version ─► refused?

A refused version serves no vote: before the next step the run goes back to the one before, whose optimiser state the learner goes
on from, as after a rollback by a person. A repeated step gives the same: rows and anchors of a step are files that are written again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from pydantic import BaseModel, TypeAdapter

from methods.audit.climbing import STEPS, climbing, entry, weight
from methods.audit.labelled import (
    SIGNS,
    Audited,
    answers,
    audited,
    errors,
    errors_of,
    rows,
    scaled,
)
from methods.audit.late import late
from methods.audit.options import AuditOptions
from methods.audit.promotion import compare, competence, total
from services.reward.scorers.votes import score
from services.trainer.credit.samples import Samples
from services.trainer.loop.hooks import LoopHooks, Measures, MethodContext
from services.trainer.loop.measures import success_rate
from triforge.algorithms.judge_targets.label import draw
from triforge.algorithms.vote_errors import VoteErrors
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
)

log = logging.getLogger(__name__)


class _Anchor(BaseModel):
    """A rollout that measures the judge; `errors` are those of the votes when it was played."""

    trajectory: Trajectory
    task: JudgeTask
    errors: VoteErrors


_ANCHORS = TypeAdapter(list[_Anchor])


class Audit(LoopHooks):
    """Trains the judge on labels, and takes back a version that judges worse."""

    options: AuditOptions

    def __init__(self, run: MethodContext, options: AuditOptions) -> None:
        super().__init__(run, options)
        run.notes.setdefault("answers", {})  # tokens of a vote, by its value
        run.notes.setdefault("errors", {})  # by anchor, of the version in use
        run.notes.setdefault("labels", 0)  # number of the newest late label that was taken
        run.notes.setdefault("steps", [])  # what the alarm reads
        run.notes.setdefault(
            "trust", {}
        )  # share of `lam` that the votes weigh, by the step that it was measured in
        self._standing = 0
        self._measures: Measures = {}
        algorithm = run.config.algorithm.resolved
        self._trains = algorithm.train_reward_model
        self._teaches = algorithm.judge_target == "label"

    async def begin(self, step: int, versions: Mapping[TrainedRole, int]) -> None:
        """Remember the version that the step is judged by."""
        self._standing = versions.get("reward", 0)

    def trust(self, step: int) -> float:
        """Return the judge's competence on audited rollouts while the policy climbs its errors, else 1; with `by_competence` times that on anchors."""
        earlier = [int(number) for number in self.run.notes["trust"] if int(number) < step]
        return float(self.run.notes["trust"][str(max(earlier))]) if earlier else 1.0

    async def more_samples(
        self, step: int, groups: Sequence[JudgedGroup], samples: Samples
    ) -> list[TrainRow]:
        """Replace the judge's rows by the labels of this step and of those kept."""
        share = self.run.config.reward.audit_share
        found = audited(groups, share=share, anchors=self.options.anchors)
        answered: dict[str, list[int]] = self.run.notes["answers"]
        for value, ids in answers(groups).items():
            answered.setdefault(str(value), list(ids))
        known = {sign: tuple(answered.get(str(sign), ())) for sign in SIGNS}
        self._measures = errors(found) | self._watch(step, groups, found)
        if not self._trains:
            return []
        given = await late(self.run, step, self.options.anchors)
        for one in given:  # an anchor with further labels is another one
            self.run.notes["errors"].pop(one.trajectory.id, None)
        anchors = [one for one in (*found, *given) if one.anchor]
        taught = [one for one in (*found, *given) if not one.anchor]
        made = rows(taught, known)
        held = [
            _Anchor(trajectory=a.trajectory, task=judge_task(a.group.played.group, a.trajectory.index), errors=errors_of(a.trajectory, a.votes))
            for a in anchors
        ]  # fmt: skip
        kept = await asyncio.to_thread(self._keep, step, made, held)
        if self._teaches:
            samples.rows["reward"] = kept
        if step % self.options.train_every:
            samples.rows["reward"] = []
        self._measures |= {
            "audit/rollouts": float(len(found)),
            "audit/labels": float(len(made)),
            "audit/late": float(sum(1 for one in given for _ in one.steps)),
            "audit/rows": float(len(samples.rows["reward"])),
        }
        return []

    async def measure(self, step: int, groups: Sequence[JudgedGroup], samples: Samples) -> Measures:
        """Return the measures of the audited rollouts."""
        return self._measures

    async def batch(self, step: int, batch: TrainBatch) -> TrainBatch:
        """Have the judge imitate its rows."""
        if batch.role != "reward" or not self._teaches:
            return batch
        plain = {"kl_beta": 0.0, "entropy_bonus": 0.0, "aggregation": "token_mean"}
        learner = batch.learner.model_copy(update={"updates_per_step": self.options.updates})
        algorithm = batch.algorithm.of_job("ce").changed(**plain)
        return batch.model_copy(update={"algorithm": algorithm, "learner": learner})

    async def after_step(self, step: int, measures: Mapping[str, float]) -> Measures:
        """Have a new version judge the anchors; one that judges worse than the version before goes back to it."""
        if not self._trains:
            return {}
        api, before = self.run.parts.apis["reward"], self._standing
        anchors = await asyncio.to_thread(self._anchors, step)
        if not anchors:
            return {"audit/anchors": 0.0}
        standing = {a.trajectory.id: a.errors for a in anchors}
        standing |= {name: VoteErrors(*one) for name, one in self.run.notes["errors"].items()}
        now = (await api.weights()).version
        found = {"audit/anchors": float(len(anchors)), "judge/unmeasured": 0.0}
        if now == before:
            self._use(step, {a.trajectory.id: standing[a.trajectory.id] for a in anchors})
            return found
        votes = await together(score(a.trajectory, a.task, api.generate_many) for a in anchors)
        new = {
            a.trajectory.id: errors_of(a.trajectory, cast)
            for a, cast in zip(anchors, votes, strict=True)
        }
        result = compare(standing, new)
        refused = result.refused(self.options.error, self.run.config.run.steps)
        if refused:
            log.warning(
                "step %d: version %d of the judge is refused: worse on %d anchors, better on %d (p %.2g)",
                step, now, result.worse, result.better, result.p,
            )  # fmt: skip
            self.run.notes["refused"] = [now, before]
        old = {name: standing[name] for name in new}
        self._use(step, old if refused else new)
        shares = {"anchors_balanced": total(new.values()), "anchors_balanced_before": total(old.values())}  # fmt: skip
        found |= {f"audit/{name}": one.balanced for name, one in shares.items() if one.balanced is not None}  # fmt: skip
        return found | {
            "audit/worse": float(result.worse), "audit/better": float(result.better), "audit/refused": float(refused),
        }  # fmt: skip

    def _use(self, step: int, errors: Mapping[str, VoteErrors]) -> None:
        """Note the errors on anchors of the version that judges from now on, and with `by_competence` what its votes weigh."""
        self.run.notes["errors"] = dict(errors)
        if self.options.by_competence:
            self.run.notes["trust"][str(step)] *= competence(errors.values())

    def _watch(
        self, step: int, groups: Sequence[JudgedGroup], found: Sequence[Audited]
    ) -> Measures:
        """Note what the alarm reads of the step, and how much the votes of the next one weigh."""
        notes = self.run.notes
        kept = [e for e in notes["steps"] if e[0] < step][-(STEPS - 1) :]
        played = [g for g in groups if g.played.group.purpose == "train"]
        notes["steps"] = [*kept, entry(step, success_rate(played), found)]
        praise = climbing(notes["steps"])
        notes["trust"] = {str(step - 1): self.trust(step), str(step): weight(praise, found)}
        alarm = {} if praise is None else {"judge/alarm/praise": praise}
        return {"audit/trust": self.trust(step)} | alarm

    @property
    def refused(self) -> dict[TrainedRole, tuple[int, int]]:
        """The version of the judge that was refused last, and the one before it."""
        found = self.run.notes.get("refused")
        return {"reward": (found[0], found[1])} if found else {}

    # ---- files ----

    def _keep(self, step: int, taught: list[TrainRow], anchors: list[_Anchor]) -> list[TrainRow]:
        """Write the labels of a step, and the anchors from it on; return the rows that the judge is trained on."""
        artifacts, options = self.run.parts.artifacts, self.options
        write_rows(artifacts, self._name(step, "parquet"), taught)
        known = [*{a.trajectory.id: a for a in (*self._anchors(step - 1), *anchors)}.values()]
        half = options.most_anchors // 2
        older = sorted(known[:-half], key=lambda a: draw(f"keep {a.trajectory.id}"))
        kept = [*older[: options.most_anchors - half], *known[-half:]]
        artifacts.write(self._name(step, "json"), _ANCHORS.dump_json(kept))
        artifacts.delete(self._name(step - 2, "json"))
        first = max(1, step - max(options.keep_steps, options.train_every - 1))
        artifacts.delete(self._name(first - 1, "parquet"))
        names = [self._name(number, "parquet") for number in range(first, step)]
        earlier = [read_rows(artifacts, name) for name in names if artifacts.exists(name)]
        newest = {row.key: row for part in (*earlier, taught) for row in part}
        return scaled([*newest.values()])

    def _anchors(self, step: int) -> list[_Anchor]:
        """Return the anchors after a step, at most `most_anchors`: the newest half, and of all older ones some by lot."""
        artifacts, name = self.run.parts.artifacts, self._name(step, "json")
        return _ANCHORS.validate_json(artifacts.read(name)) if artifacts.exists(name) else []

    def _name(self, step: int, kind: str) -> str:
        return f"runs/{self.run.run_id}/audit/{step:05d}.{kind}"
