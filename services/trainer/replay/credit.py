"""Rewards, advantages and weights of a step once more, from its record, by the code that credited it; and under other rules."""

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
    """How a part of a step compares with what was recorded, in a word and in a sentence."""

    part: str
    verdict: Verdict
    said: str


@dataclass(frozen=True, slots=True)
class Credited:
    """A step that was credited again."""

    config: RunConfig
    groups: list[JudgedGroup]
    samples: Samples


def credit(step: int, record: StepRecord, what_if: Sequence[str] = ()) -> Credited:
    """Credit the groups of a recorded step, with `what_if` (`section.field=value`) laid over the run's config."""
    config, numbers = parse(with_assignments(record.config, what_if)), record.numbers
    groups = groups_of(record.records, config)
    options = SampleOptions.of(
        config,
        step,
        {
            name.removesuffix("_version"): int(number)
            for name, number in numbers.items()
            if name.endswith("_version")
        },
        numbers["trust"],
    )
    return Credited(
        config, groups, build_samples(groups, replace(options, seed=int(numbers["seed"])))
    )


def compare(
    record: StepRecord, found: Sequence[dict[str, Any]], config: RunConfig, part: str = "credit"
) -> Finding:
    """Every number of a step's record, and every option of its algorithm, against the one that was found.

    Sums and quotients of doubles come out alike on every machine; what a library of logarithms and powers may round
    otherwise, and a sum carries on, is at most one unit a response: n * 2^-53, of a number or of 1 if that is more.
    """
    if len(found) != len(record.records):
        said = f"{len(found)} responses where {len(record.records)} are on record"
        return Finding(part, "differs", said)
    bound = len(record.records) * _ROUNDOFF
    algorithm = config.algorithm.resolved.model_dump(mode="json")
    known = {name: record.algorithm.get(name, now) for name, now in algorithm.items()}
    pairs = [({"algorithm": algorithm}, {"algorithm": known})]
    apart: dict[str, list[float]] = {}
    for mine, theirs in (*pairs, *zip(found, record.records, strict=True)):
        for column, distance in _apart("", theirs, mine):
            apart.setdefault(column, []).append(distance)
    said = f"{len(found)} responses, {sum(len(r['votes']) for r in found)} votes"
    if not apart:
        return Finding(part, "same", said)
    furthest = max(map(max, apart.values()))
    worst = sorted(apart, key=lambda name: -max(apart[name]))[:_SHOWN]
    shown = "; ".join(f"{n}: {len(apart[n])} differ, by up to {max(apart[n]):.3g}" for n in worst)
    return Finding(part, "rounding" if furthest <= bound else "differs", f"{said}; {shown}")


def _apart(name: str, theirs: Any, mine: Any) -> Iterator[tuple[str, float]]:
    """The leaves that are not alike: of numbers how far apart they are, of other things infinity."""
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


# ---- other rules ----


@dataclass(slots=True)
class Change:
    """What other rules would have made of a step's responses, or of its votes.

    `before` and `after` hold how many are trained on and the mean of their advantages' sizes; `flipped` have an advantage of
    the other sign, `dropped` and `added` are trained on in one of the two alone.
    """

    rows: tuple[int, int]
    trained: list[int]
    size: list[float]
    flipped: int = 0
    dropped: int = 0
    added: int = 0


def changes(before: Credited, after: Credited) -> dict[TrainedRole, Change]:
    """By model."""
    found: dict[TrainedRole, Change] = {}
    for role in before.samples.rows:
        pairs = list(zip(_scored(before, role), _scored(after, role), strict=True))
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


def _scored(credited: Credited, role: TrainedRole) -> Iterator[float | None]:
    """The advantage of each response, or of each vote and test; None of one that is not trained on."""
    judges = credited.config.models.judges
    for record in credited.samples.records:
        votes, judge = (
            (*record["votes"], *record["tests"]),
            judges.get(record["agent_id"], "reward"),
        )
        for text in votes if role == judge else [record] if record["model"] == role else []:
            yield None if text["reason"] else text["advantage"]
