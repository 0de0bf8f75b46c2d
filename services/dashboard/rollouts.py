"""Pages of what a run has played: its rollouts by filters, one of them turn by turn and token by token, a group side by side."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final, get_args
from urllib.parse import urlencode

from services.dashboard.apis import Apis
from triforge.clients.transport import segment
from triforge.config.base import Purpose
from triforge.types import Page, RunState, TrajectoryPage, TrajectoryRecord, TrajectorySummary

Draw = Callable[..., str]  # a template's name and its values

OUTCOMES: Final = {
    "success": "success", "failure": "failure", "scored": "a score only", "unmeasured": "not measured (infrastructure)",
}  # fmt: skip
VIEWS: Final = {  # what people look for first
    "all": {},
    "votes against the outcome": {"against": "true"},
    "failed by infrastructure": {"outcome": "unmeasured"},
    "truncated": {"truncated": "true"},
    "left out of training": {"purpose": "train", "trained": "false"},
    "held-out tasks": {"purpose": "evaluate"},
}
FIELDS: Final = (
    "step", "task", "kind", "purpose", "outcome", "against", "trained", "truncated", "min_length", "max_length",
    "min_staleness", "search", "sort",
)  # fmt: skip
COLOURS: Final = {
    "sampled": "log-probability at sampling", "training": "log-probability at training", "ratio": "ratio",
    "mask": "trained on", "version": "version of the weights",
}  # fmt: skip
# bounds of the colours: from certain to surprising, from less likely than at sampling to more
_LOGPROBS: Final = (-0.01, -0.1, -0.5, -1.0, -2.0, -4.0)
_RATIOS: Final = (0.5, 0.8, 0.95, 1.05, 1.25, 2.0)
_PAGE: Final = 50


class Rollouts:
    """The pages of rollouts; `draw` fills a template."""

    def __init__(self, apis: Apis, draw: Draw) -> None:
        self._apis, self._draw = apis, draw

    async def table(self, key: str, run_id: str, query: Mapping[str, str]) -> str:
        """Rollouts that meet the filters of an address; what is empty in it or not a filter is passed over."""
        wanted = {name: query[name] for name in FIELDS if query.get(name, "").strip()}
        path = f"/v1/runs/{segment(run_id)}"
        run, page = await asyncio.gather(
            self._apis.read(RunState, "trainer", path, key),
            self._apis.read(
                TrajectoryPage, "trainer", f"{path}/trajectories", key,
                limit=_PAGE, cursor=query.get("cursor", ""), **wanted,
            ),
        )  # fmt: skip
        return self._draw(
            "rollouts", run=run, page=page, wanted=dict.fromkeys(FIELDS, "") | wanted, filtered=bool(wanted), link=_link(wanted), outcomes=OUTCOMES,
            purposes=get_args(Purpose), views={name: _link(fields) for name, fields in VIEWS.items()},
            scored=any(_says_more(row) for row in page.items), began="cursor" not in query,
            by=lambda name: _link(wanted | {"sort": name if wanted.get("sort") == f"-{name}" else f"-{name}"}),
            more=_link(wanted | {"cursor": page.next_cursor}) if page.next_cursor else "",
        )  # fmt: skip

    async def one(self, key: str, run_id: str, trajectory_id: str) -> str:
        """One rollout, turn by turn."""
        run, found = await self._read(key, run_id, trajectory_id)
        path = f"/v1/runs/{segment(run_id)}/trajectories"
        group = found.summary.group_id
        own = await self._apis.read(TrajectoryPage, "trainer", path, key, group=group, limit=1000)
        at = next((n for n, row in enumerate(own.items) if row.id == trajectory_id), 0)
        return self._draw(
            "rollout", run=run, found=found, row=found.summary, number=at + 1, of=len(own.items),
            before=own.items[at - 1] if at else None, after=next(iter(own.items[at + 1 :]), None),
        )  # fmt: skip

    async def tokens(self, key: str, run_id: str, trajectory_id: str, by: str, form: str) -> str:
        """The sampled tokens of a rollout, coloured by one of their numbers, or as a table."""
        run, found = await self._read(key, run_id, trajectory_id)
        by = by if by in COLOURS else "sampled"
        turns = [(step, tokens_of(step)) for step in found.steps]
        versions = sorted({token["version"] for _, tokens in turns for token in tokens})
        for _, tokens in turns:
            for token in tokens:
                token["level"] = _level(token, by, versions)
        return self._draw(
            "tokens", run=run, row=found.summary, turns=turns, by=by, form=form, colours=COLOURS,
            legend=_legend(by, versions), trained=any(t["training"] is not None for _, ts in turns for t in ts),
        )  # fmt: skip

    async def group(self, key: str, run_id: str, group_id: str) -> str:
        """The rollouts of a group in columns, step by step."""
        path = f"/v1/runs/{segment(run_id)}"
        run, page = await asyncio.gather(
            self._apis.read(RunState, "trainer", path, key),
            self._apis.read(Page[TrajectoryRecord], "trainer", f"{path}/groups/{segment(group_id)}", key),
        )  # fmt: skip
        rows = [record.summary for record in page.items]
        tree = any(step.get("state") for record in page.items for step in record.steps)
        parted = parts([[step["action"] for step in record.steps] for record in page.items])
        steps = zip_longest(*(record.steps for record in page.items))
        lines = [(n, [*zip(cells, parted[n], strict=True)]) for n, cells in enumerate(steps)]
        first = next((n for n, marks in enumerate(parted) if any(marks)), None)
        instruction = max((record.instruction for record in page.items), key=len, default="")
        return self._draw(
            "group", run=run, group=group_id, rows=rows, lines=lines, first=None if tree else first, instruction=instruction, tree=tree,
        )  # fmt: skip

    async def _read(
        self, key: str, run_id: str, trajectory_id: str
    ) -> tuple[RunState, TrajectoryRecord]:
        path = f"/v1/runs/{segment(run_id)}"
        return await asyncio.gather(
            self._apis.read(RunState, "trainer", path, key),
            self._apis.read(
                TrajectoryRecord, "trainer", f"{path}/trajectories/{segment(trajectory_id)}", key
            ),
        )


def parts(actions: Sequence[Sequence[str]]) -> list[list[bool]]:
    """`[step][rollout]`: whether rollouts that did the same before this step act differently here."""
    found = []
    for n in range(max(map(len, actions), default=0)):
        ways: dict[tuple[str, ...], set[str]] = {}
        for own in actions:
            ways.setdefault(tuple(own[:n]), set()).update(own[n : n + 1])
        found.append([n < len(own) and len(ways[tuple(own[:n])]) > 1 for own in actions])
    return found


def tokens_of(step: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The sampled tokens of a step with all that is on record of each."""
    ids, texts = step["response_ids"], step.get("tokens") or []
    training = step.get("training_logprobs") or []
    columns = zip_longest(ids, texts, step["response_logprobs"], training, step["policy_versions"])
    weight = step["weight"] / len(ids) if ids else 0.0
    return [
        {
            "id": token, "text": f"[{token}]" if text is None else text.replace("\n", "↵\n"), "sampled": sampled, "training": trained,
            "ratio": None if trained is None else math.exp(max(-20.0, min(20.0, trained - sampled))),
            "mask": weight > 0.0, "weight": weight, "version": version,
        }
        for token, text, sampled, trained, version in columns
    ]  # fmt: skip


def _level(token: Mapping[str, Any], by: str, versions: Sequence[int]) -> int:
    """Which colour a token has: 0 is none, up to 6."""
    value = token[by]
    if by == "mask":
        return 3 if value else 0
    if value is None:
        return 0
    if by == "version":
        return versions.index(value) % 6 + 1
    if by == "ratio":
        return sum(value > bound for bound in _RATIOS)
    return sum(value < bound for bound in _LOGPROBS)


def _legend(by: str, versions: Sequence[int]) -> list[tuple[int, str]]:
    """What the colours mean."""
    if by == "mask":
        return [(3, "trained on"), (0, "left out")]
    if by == "version":
        return [(n % 6 + 1, f"version {version}") for n, version in enumerate(versions)]
    bounds, word = (_RATIOS, "above") if by == "ratio" else (_LOGPROBS, "below")
    ends = ("at most" if by == "ratio" else "at least", bounds[0])
    return [(0, f"{ends[0]} {ends[1]:g}"), *((n, f"{word} {b:g}") for n, b in enumerate(bounds, 1))]


def _says_more(row: TrajectorySummary) -> bool:
    """Whether the score says more than success does."""
    return row.score is not None and row.score != {1: 1.0, -1: 0.0}.get(row.outcome or 0)


def _link(fields: Mapping[str, str | None]) -> str:
    return f"?{urlencode(fields)}"
