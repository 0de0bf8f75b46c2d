"""Choice of the finished rollouts that become questions for the policy: to judge one, to choose one of two, to mend a failed one.

Source: SPARK, arXiv 2509.22624, and its released code.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from triforge.types import Message

Kind = Literal["pointwise", "pairwise", "reflection"]
KINDS: Final[tuple[Kind, ...]] = ("pointwise", "pairwise", "reflection")
_POINTWISE: Final = 0.3  # share of mixed groups of which one rollout is judged, not a pair


class Question(Message):
    """A question about finished rollouts that the policy answers, `GroupTask.extra["spark"]`.

    `text` is the question, or the text after the task's first observation. `verdict` is the right one; 0 if the task is to be done
    again.
    """

    kind: Kind
    text: str
    verdict: Literal[-1, 0, 1]


@dataclass(frozen=True, slots=True)
class Item:
    """The rollouts of a group that a question is about, by their indices in the order in which they are shown.

    `verdict` is +1 if the one rollout, or the first of two, succeeded, else -1; 0 for a reflection, which the task itself
    verifies. `whole` shows responses and not only final answers.
    """

    kind: Kind
    group: int
    rollouts: tuple[int, ...]
    verdict: Literal[-1, 0, 1]
    whole: bool = False


def choose(
    outcomes: Sequence[Sequence[int | None]],
    answered: Sequence[Sequence[bool]],
    *,
    cap: int,
    seed: int,
) -> list[Item]:
    """Return the items of a step, at most `cap` to judge and `cap` to mend; the same arguments give the same items.

    A group in which all succeeded gives its first rollout to judge, one in which all failed a random one with an answer, a
    mixed one a rollout (of either side alike) or a pair in random order. Each group with a failure gives one to mend: the
    first half of the groups by the whole responses, the others by the final answer.

    `outcomes` are +1 or -1 a rollout of each group, None if it was not measured: such a rollout is never shown. `answered` says
    whether a final answer could be read from it.
    """
    draw = random.Random(seed)  # noqa: S311 (a reproducible draw, not a secret)
    judged: list[Item] = []
    mended: list[Item] = []
    for group, (row, read) in enumerate(zip(outcomes, answered, strict=True)):
        right = [n for n, value in enumerate(row) if value == 1]
        wrong = [n for n, value in enumerate(row) if value == -1]
        legible, whole = [n for n in wrong if read[n]], 2 * group < len(outcomes)
        if right and wrong:
            judged.append(_mixed(draw, group, right, wrong))
        elif right:
            judged.append(Item("pointwise", group, (right[0],), 1))
        elif legible:
            judged.append(Item("pointwise", group, (draw.choice(legible),), -1))
        if shown := wrong if whole else legible:
            mended.append(Item("reflection", group, (draw.choice(shown),), 0, whole))
    return [*_at_most(draw, judged, cap), *_at_most(draw, mended, cap)]


def _mixed(draw: random.Random, group: int, right: list[int], wrong: list[int]) -> Item:
    first: Literal[-1, 1] = draw.choice((-1, 1))
    sides = (right, wrong)[::first]
    if draw.random() < _POINTWISE:
        return Item("pointwise", group, (draw.choice(sides[0]),), first)
    return Item("pairwise", group, tuple(draw.choice(side) for side in sides), first)


def _at_most(draw: random.Random, items: list[Item], cap: int) -> list[Item]:
    return items if len(items) <= cap else draw.sample(items, cap)
