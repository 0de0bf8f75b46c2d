"""iStar compared with RLOO on chains whose end alone is rewarded, learnt by tables of logits in the place of policy and reward model.

Of four words one leads a place on, one a place back and two nowhere; an episode that does not reach the end in time fails. Pair loss,
scores and advantages are the product's own.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from random import Random
from statistics import fmean

from triforge.algorithms.algorithm import resolve
from triforge.algorithms.credit import credit_steps
from triforge.algorithms.jobs.imitation import pair_loss
from triforge.algorithms.samples import JudgedStep, Rollout, Sample

PLACES, MOVES, WORDS, TASKS, ROLLOUTS = 5, 12, 4, 3, 8
_BETA, _JUDGE_RATE = 0.05, 20.0
State = tuple[int, int]  # task and place
Table = defaultdict[State, list[float]]
Path_ = list[tuple[State, int]]  # states and the word in each


def _table() -> Table:
    return Table(lambda: [0.0] * WORDS)


def _chances(table: Table, state: State) -> list[float]:
    weights = [math.exp(logit) for logit in table[state]]
    return [weight / sum(weights) for weight in weights]


def _play(table: Table, task: int, rng: Random) -> tuple[Path_, bool]:
    way = Random(1_000 + task)
    turns = [way.sample(range(WORDS), 2) for _ in range(PLACES)]
    place, path_taken = 0, Path_()
    for _ in range(MOVES):
        (word,) = rng.choices(range(WORDS), _chances(table, (task, place)))
        path_taken.append(((task, place), word))
        on, back = turns[place]
        place = place + 1 if word == on else max(0, place - (word == back))
        if place == PLACES:
            return path_taken, True
    return path_taken, False


def _push(table: Table, pushes: Sequence[tuple[State, int, float]]) -> None:
    """Take a step along the gradient of the sum of amount * log p(word)."""
    before = {state: _chances(table, state) for state, *_ in pushes}
    for state, word, amount in pushes:
        for other, chance in enumerate(before[state]):
            table[state][other] += amount * ((other == word) - chance)


def curve(
    seed: int, *, implicit: bool, rate: float = 1.0, updates: int = 24
) -> Iterator[dict[str, float]]:
    """Success in each update, and with an implicit reward model the share of pairs that it orders right before it learns from them."""
    changes = {"normalise": "others", "outcome": "binary"}  # RLOO's comparison of outcomes
    algorithm = resolve("istar", changes) if implicit else resolve("rloo")
    rng, policy, judge = Random(seed), _table(), _table()
    for _ in range(updates):
        groups = [[_play(policy, task, rng) for _ in range(ROLLOUTS)] for task in range(TASKS)]
        taught, right = list[tuple[State, int, float]](), list[float]()
        lessons = list[tuple[State, int, float]]()
        for group in groups:
            scores = [
                [
                    math.log(_chances(judge, state)[word] / _chances(policy, state)[word])
                    for state, word in path_taken
                ]
                for path_taken, _ in group
            ]
            rollouts = [
                Rollout(
                    outcome=1 if success else -1,
                    score=float(success),
                    steps=[
                        JudgedStep(
                            response=Sample(), action=str(word), score=score if implicit else None
                        )
                        for (_, word), score in zip(path_taken, row, strict=True)
                    ],
                )
                for (path_taken, success), row in zip(group, scores, strict=True)
            ]
            credit_steps(rollouts, algorithm)
            taught += [
                (state, word, rate * step.response.advantage / ROLLOUTS)
                for (path_taken, _), rollout in zip(group, rollouts, strict=True)
                for (state, word), step in zip(path_taken, rollout.steps, strict=True)
            ]
            pairs = pair_loss(
                [_BETA * sum(row) for row in scores], [won for _, won in group], [0] * ROLLOUTS
            )
            right += [pairs.right] * (pairs.pairs > 0)
            lessons += [
                (state, word, -_JUDGE_RATE * _BETA * slope)
                for (path_taken, _), slope in zip(group, pairs.slopes, strict=True)
                for state, word in path_taken
            ]
        yield {"success": fmean(won for group in groups for _, won in group)} | (
            {"right": fmean(right)} if implicit and right else {}
        )
        _push(judge, lessons)
        _push(policy, taught)
