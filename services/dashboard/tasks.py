"""A task with all of its versions, what a rewrite is, and what people do about them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal

from services.dashboard.apis import Apis
from services.dashboard.charts import Chart
from services.dashboard.drawing import Picture, pictures
from triforge.algorithms.theory import wilson
from triforge.clients.transport import segment
from triforge.errors import InputError
from triforge.types import Lineage, Measurement, ProposalDetail, RunStep, TaskDetail, mean_score

Part = tuple[Literal["same", "gone", "new"], str]
Counts = Iterable[tuple[int, int]]

_DEEPEST: Final = 8  # indentations
_LINES: Final = 7  # versions in a picture, as many as there are colours
_PICTURES: Final = 3  # of the newest runs
VERBS: Final[Mapping[str, tuple[str, ...]]] = {
    "tasks": ("pause", "resume", "pin", "unpin", "rollback"),
    "proposals": ("approve", "reject"),
}


class Tasks:
    """The pages; `page` fills a template."""

    def __init__(self, apis: Apis, page: Callable[..., str]) -> None:
        self._apis, self._page = apis, page

    async def lineage(self, key: str, task_id: str) -> str:
        """All versions of a task as a tree."""
        path = f"/v1/tasks/{segment(task_id)}/lineage"
        lineage = await self._apis.read(Lineage, "env_adapter", path, key)
        versions = {version.task.id: version for version in lineage.versions}
        depths = _depths(lineage.versions)
        shown = [
            {
                "version": version, "depth": depths[name], "changed": _changed(version, versions),
                "success": success(version.measurements), "trial": _trial(version),
            }
            for name, version in versions.items()
        ]  # fmt: skip
        active = versions.get(lineage.active_id or "")
        paused = [v.task for v in lineage.versions if v.task.state == "paused"]
        return self._page(
            "lineage", lineage=lineage, versions=shown, wanted=task_id, task=active.task if active else next(iter(paused), None),
            back={v.task.id for v in _ancestors(lineage.active_id, versions)}, pictures=curves(lineage.versions),
        )  # fmt: skip

    async def proposal(self, key: str, proposal_id: str) -> str:
        """A rewrite."""
        path = f"/v1/proposals/{segment(proposal_id)}"
        detail = await self._apis.read(ProposalDetail, "env_adapter", path, key)
        made = detail.proposal
        return self._page(
            "proposal",
            proposal=made,
            changed=differences(made.instruction_before, made.instruction_after),
            parent=success(m for m in detail.measurements if m.purpose == "measure_parent"),
            candidate=success(m for m in detail.measurements if m.purpose != "measure_parent"),
            measurements=detail.measurements,
            changes=detail.changes,
        )

    async def act(self, key: str, fields: Mapping[str, str]) -> str:
        """Do what a form asks for; returns the address of the page that shows it.

        Raises:
            InputError: no such verb.
            TriforgeError: the API refuses.
        """
        kind, name, verb = (fields.get(field, "") for field in ("kind", "id", "verb"))
        if not name or verb not in VERBS.get(kind, ()):
            known = "; ".join(f"{kind}: {', '.join(verbs)}" for kind, verbs in VERBS.items())
            raise InputError(
                f"verb: given {kind[:20]!r} {verb[:20]!r} of {name[:80]!r}, expected {known}"
            )
        body = {"reason": fields.get("reason", "")}
        if verb == "rollback":
            body["to"] = fields.get("to", "")
        await self._apis.post("env_adapter", f"/v1/{kind}/{segment(name)}/{verb}", key, body)
        return f"/{kind}/{segment(name)}"


def curves(versions: Iterable[TaskDetail]) -> list[Picture]:
    """Success of the newest versions over the steps of each of the newest runs that measured them."""
    runs: dict[str, dict[int, dict[str, list[Measurement]]]] = {}
    for version in versions:
        for row in version.measurements:
            steps = runs.setdefault(row.run_id, {})
            steps.setdefault(row.step, {}).setdefault(str(version.task.version), []).append(row)
    found = []
    for run_id, steps in [*runs.items()][-_PICTURES:]:
        names = sorted({name for rows in steps.values() for name in rows}, key=int)[-_LINES:]
        chart = Chart(
            f"Success in {run_id}", "share of rollouts", {f"version {n}": n for n in names}, top=1.0
        )
        drawn = [
            RunStep(run_id=run_id, step=step, at=0.0, policy_version=0, reward_version=0, metrics=_shares(rows))
            for step, rows in sorted(steps.items())
        ]  # fmt: skip
        found += pictures([chart], drawn)
    return found


def _shares(rows: Mapping[str, Iterable[Measurement]]) -> dict[str, float]:
    """The share of successes of each version with its interval, as measures of a step."""
    found: dict[str, float] = {}
    for name, own in rows.items():
        share = success(own)
        if share["measured"]:
            found |= {
                name: share["share"],
                f"{name}/low": share["low"],
                f"{name}/high": share["high"],
            }
    return found


def success(measurements: Iterable[Measurement]) -> dict[str, float]:
    """Successes of measured rollouts and the 95 % interval of their share; their mean score where it says more."""
    rows = [*measurements]
    return (
        {"scored": 0} | _counted((row.successes, row.measured) for row in rows) | mean_score(rows)
    )


def _counted(counts: Counts) -> dict[str, float]:
    pairs = [*counts]
    successes, measured = (sum(pair[n] for pair in pairs) for n in (0, 1))
    if not measured:
        return {"measured": 0}
    low, high = wilson(successes, measured)
    share = successes / measured
    return {"measured": measured, "successes": successes, "share": share, "low": low, "high": high}


def _trial(version: TaskDetail) -> list[tuple[str, dict[str, float]]]:
    """Both measurements of the rewrite that made a version."""
    made = version.made_by
    if made is None or not made.candidate_counts:
        return []
    both = (("before", made.parent_counts), ("after", made.candidate_counts))
    return [(name, {"scored": 0} | _counted(counts)) for name, counts in both]


def _changed(version: TaskDetail, versions: Mapping[str, TaskDetail]) -> list[Part]:
    """What is not as in the version's parent."""
    parent = versions.get(version.task.parent_id or "")
    if parent is None:
        return [("same", version.task.instruction)]
    return differences(parent.task.instruction, version.task.instruction)


def _depths(versions: Iterable[TaskDetail]) -> dict[str, int]:
    """How far a version is indented: deeper where its parent has several children, for a line of them stays one."""
    found: dict[str, int] = {}
    children: dict[str | None, int] = {}
    rows = [*versions]
    for version in rows:
        children[version.task.parent_id] = children.get(version.task.parent_id, 0) + 1
    for version in rows:
        above = version.task.parent_id
        branch = above is not None and children[above] > 1
        found[version.task.id] = min(_DEEPEST, found.get(above or "", 0) + branch)
    return found


def _ancestors(active: str | None, versions: Mapping[str, TaskDetail]) -> Iterable[TaskDetail]:
    """What the played version came from, to which the slot can be taken back."""
    version = versions.get(active or "")
    while version is not None:
        version = versions.get(version.task.parent_id or "")
        if version is not None:
            yield version


def differences(before: str, after: str) -> list[Part]:
    """What changed, word by word, in reading order: `same` and `gone` are `before`, `same` and `new` are `after`."""
    old, new = (re.findall(r"\s+|\w+|[^\w\s]", text) for text in (before, after))
    found: list[Part] = []
    for what, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if what == "equal":
            found.append(("same", "".join(old[a:b])))
            continue
        if b > a:
            found.append(("gone", "".join(old[a:b])))
        if d > c:
            found.append(("new", "".join(new[c:d])))
    return found
