"""One held-out task as it was played before and after training, with the judge's votes on each step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
from pyarrow import parquet

from triforge.clients.transport import request
from triforge.types import Criteria

_COLUMNS = [
    "step", "task_slot", "trajectory_id", "segment", "step_index", "instruction", "observation", "response", "action",
    "next_observation", "label", "outcome",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One step; `label` is what the environment knows of it (+1 it helped, -1 it did not), `votes` are the judge's."""

    observation: str
    response: str
    action: str
    next_observation: str
    label: int | None
    votes: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Episode:
    """One try at the task, by the policy as it was after a training step."""

    step: int
    solved: bool
    turns: tuple[Turn, ...]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """The same held-out task at the first and the last evaluation, and how many others changed sides."""

    task: str
    instruction: str
    mode: str
    before: Episode
    after: Episode
    gained: int
    lost: int
    tasks: int


def find_pair(export: Path) -> Pair | None:
    """Return the quickest task that became solved, else the first task. None without two evaluations.

    Args:
        export: the run's Parquet record.
    """
    if not export.is_file():
        return None
    table = parquet.read_table(export, columns=_COLUMNS, filters=[("purpose", "=", "evaluate")])
    played: dict[tuple[str, int], dict[str, list[dict[str, Any]]]] = {}
    for row in table.to_pylist():
        mode = "greedy" if "-greedy-" in row["trajectory_id"] else "sampled"
        episodes = played.setdefault((mode, row["step"]), defaultdict(list))
        episodes[row["task_slot"]].append(row)
    mode = min((mode for mode, _ in played), default="")  # greedy where it was played
    steps = [step for kind, step in played if kind == mode]
    if len(set(steps)) < 2:
        return None
    old, new = played[mode, min(steps)], played[mode, max(steps)]
    both = {slot: (old[slot][0]["outcome"], new[slot][0]["outcome"]) for slot in old if slot in new}
    gained = [slot for slot, outcomes in both.items() if outcomes == (-1, 1)]
    shown = min(gained, key=lambda slot: len(new[slot]), default=next(iter(both), None))
    if shown is None:
        return None
    return Pair(
        task=shown,
        instruction=old[shown][0]["instruction"],
        mode=mode,
        before=_episode(old[shown]),
        after=_episode(new[shown]),
        gained=len(gained),
        lost=sum(outcomes == (1, -1) for outcomes in both.values()),
        tasks=len(both),
    )


def _episode(rows: list[dict[str, Any]]) -> Episode:
    ordered = sorted(rows, key=lambda row: (row["segment"], row["step_index"]))
    fields = ("observation", "response", "action", "next_observation", "label")
    turns = tuple(Turn(**{name: row[name] for name in fields}) for row in ordered)
    return Episode(step=rows[0]["step"], solved=rows[0]["outcome"] == 1, turns=turns)


async def judged(pair: Pair, reward: httpx.AsyncClient, criteria: Criteria) -> Pair:
    """Return the pair with votes of the running judge, which is shown the criteria; evaluation itself asks for none.

    Raises:
        TriforgeError: the judge does not answer.
    """
    shared = {"instruction": pair.instruction, "criteria": criteria.model_dump(mode="json")}
    before = await _judged(reward, shared, pair.before)
    after = await _judged(reward, shared, pair.after)
    return replace(pair, before=before, after=after)


async def _judged(
    reward: httpx.AsyncClient, shared: Mapping[str, Any], episode: Episode
) -> Episode:
    texts = ("observation", "response", "action", "next_observation")
    steps = [{name: getattr(turn, name) for name in texts} for turn in episode.turns]
    body = {**shared, "steps": steps, "seed": 0}
    reply = (await request(reward, "POST", "/v1/judge", body=body)).json()
    turns = [
        replace(turn, votes=tuple(vote["value"] for vote in step["votes"]))
        for turn, step in zip(episode.turns, reply["steps"], strict=True)
    ]
    return replace(episode, turns=tuple(turns))
