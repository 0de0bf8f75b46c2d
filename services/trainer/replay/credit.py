"""Rewards, advantages and weights of a recorded step, computed again by the code that credited it, or with other options."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from services.trainer.credit.options import SampleOptions
from services.trainer.credit.samples import Samples, build_samples
from services.trainer.replay.recorded_groups import groups_of
from services.trainer.replay.recording import StepRecord
from triforge.config import RunConfig, parse, with_assignments
from triforge.types import JudgedGroup, TrainedRole

Verdict = Literal["same", "rounding", "differs", "not recomputed"]
VERDICTS: Final[tuple[Verdict, ...]] = ("same", "rounding", "differs", "not recomputed")
_ROUNDOFF: Final = 2.0**-53  # of a double
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """The comparison of a part of a step with its record: a verdict and a sentence."""

    part: str
    verdict: Verdict
    detail: str


@dataclass(frozen=True, slots=True)
class Credited:
    """A step that was credited again."""

    config: RunConfig
    groups: list[JudgedGroup]
    samples: Samples


def credit(step: int, record: StepRecord, what_if: Sequence[str] = ()) -> Credited:
    """Credit the groups of a recorded step, with `what_if` (`section.field=value`) laid over the run's config."""
    config, numbers = parse(with_assignments(record.config, what_if)), record.numbers
    versions = {
        name.removesuffix("_version"): int(number)
        for name, number in numbers.items()
        if name.endswith("_version")
    }
    options = SampleOptions.of(
        config, step, versions, numbers["trust"], numbers.get("vote_share", 1.0)
    )
    groups = groups_of(record.records, config)
    samples = build_samples(groups, replace(options, seed=int(numbers["seed"])))
    return Credited(config, groups, samples)


def compare(record: StepRecord, again: Credited) -> Finding:
    """Compare every number of a step's record, and every option of its algorithm, with those computed again.

    Sums and quotients of doubles are equal on every machine; logarithms and powers may be rounded otherwise by another library,
    and a sum carries that on, by at most one unit a response: n * 2^-53, of a number or of 1 if that is more.
    """
    mine, theirs = again.samples.records, record.records
    if len(mine) != len(theirs):
        detail = f"{len(mine)} responses, {len(theirs)} on record"
        return Finding("credit", "differs", detail)
    algorithm = again.config.algorithm.resolved.model_dump(mode="json")
    known = {name: record.algorithm.get(name, now) for name, now in algorithm.items()}
    apart: dict[str, list[float]] = {}
    for old, new in [(known, algorithm), *zip(theirs, mine, strict=True)]:
        for column, distance in _apart("", old, new):
            apart.setdefault(column, []).append(distance)
    detail = f"{len(mine)} responses, {sum(len(r['votes']) for r in mine)} votes"
    if not apart:
        return Finding("credit", "same", detail)
    furthest = {column: max(distances) for column, distances in apart.items()}
    shown = "; ".join(
        f"{column}: {len(apart[column])} differ, by up to {furthest[column]:.3g}"
        for column in sorted(furthest, key=lambda name: -furthest[name])[:_SHOWN]
    )
    rounding = max(furthest.values()) <= len(theirs) * _ROUNDOFF
    return Finding("credit", "rounding" if rounding else "differs", f"{detail}; {shown}")


def _apart(name: str, theirs: Any, mine: Any) -> Iterator[tuple[str, float]]:
    """Yield the leaves that differ with their distance, which is infinite between other things than numbers."""
    if theirs == mine:
        return
    if isinstance(theirs, dict) and isinstance(mine, dict):  # an older record has other columns
        for key in theirs.keys() & mine.keys():
            yield from _apart(f"{name}.{key}".lstrip("."), theirs[key], mine[key])
    elif isinstance(theirs, list) and isinstance(mine, list) and len(theirs) == len(mine):
        for one, other in zip(theirs, mine, strict=True):
            yield from _apart(name, one, other)
    elif isinstance(theirs, float) and isinstance(mine, float):
        yield name, abs(theirs - mine) / max(1.0, abs(theirs), abs(mine))
    else:
        yield name, math.inf


# ---- other options ----


@dataclass(slots=True)
class Change:
    """The effect of other options on a step's responses, or on its votes.

    `before` and `after` of `trained` and `size` are the number of trained samples and the mean size of their advantages;
    `flipped` have an advantage of the other sign, `dropped` and `added` are trained on in one of the two alone.
    """

    rows: tuple[int, int]
    trained: list[int]
    size: list[float]
    flipped: int = 0
    dropped: int = 0
    added: int = 0


def changes(before: Credited, after: Credited) -> dict[TrainedRole, Change]:
    """Return the changes of each model's samples."""
    found: dict[TrainedRole, Change] = {}
    for role in before.samples.rows:
        pairs = list(zip(_advantages(before, role), _advantages(after, role), strict=True))
        kept = [[abs(a) for a in side if a is not None] for side in zip(*pairs, strict=True)]
        both = [(a, b) for a, b in pairs if a is not None and b is not None]
        if pairs:
            found[role] = Change(
                rows=(len(before.samples.rows[role]), len(after.samples.rows[role])),
                trained=[len(side) for side in kept],
                size=[math.fsum(side) / len(side) if side else 0.0 for side in kept],
                flipped=sum(a * b < 0 for a, b in both),
                dropped=sum(a is not None and b is None for a, b in pairs),
                added=sum(a is None and b is not None for a, b in pairs),
            )
    return found


def _advantages(credited: Credited, role: TrainedRole) -> Iterator[float | None]:
    """Yield the advantage of each of a model's samples; None of one that is not trained on."""
    judges = credited.config.models.judges
    for record in credited.samples.records:
        if record["model"] == role:
            yield None if record["reason"] else record["advantage"]
        if judges.get(record["agent_id"], "reward") == role:
            for text in (*record["votes"], *record["texts"]):
                yield None if text["reason"] else text["advantage"]
