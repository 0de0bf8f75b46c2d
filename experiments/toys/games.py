"""The games of RAGEN, learnt by a table of logits (and one of values) in the place of models: StarPO, StarPO-S and RLoop.

Rewards, advantages, the filter, the estimator and the archive are the product's own; a table learns here, not a language model.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from statistics import fmean
from typing import Any

from environments.sokoban.family import FAMILY as SOKOBAN
from environments.toy_text.family import FAMILY as TOY
from triforge.algorithms.advantages import whitened
from triforge.algorithms.algorithm import Algorithm, resolve
from triforge.algorithms.archive import Rollout, solutions
from triforge.algorithms.credit import Played, PolicyCredit, policy_credit
from triforge.algorithms.filters import spread_filter
from triforge.types import Params

ROLLOUTS, MOVES = 8, 8
GAMES: dict[str, tuple[Any, int, Params]] = {  # family, tasks, options of its generator
    "bandit": (TOY, 12, {"games": ["bandit"]}),
    "frozen_lake": (TOY, 3, {"games": ["frozen_lake"], "size": 3}),
    "sokoban": (SOKOBAN, 3, {"moves": [1, 3]}),
}
_HARDEST, _DISTINCT, _EPOCHS = 0.9, 8, 4  # of RLoop
Table = defaultdict[tuple[str, str], float]


@dataclass
class Episode:
    """States, the words that could be said in each, and the one that was; what came of it."""

    states: list[str] = field(default_factory=list)
    choices: list[tuple[str, ...]] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    success: bool = False
    score: float | None = None


def chances(table: Table, state: str, words: tuple[str, ...]) -> list[float]:
    """Of a softmax of what is known of each word here and everywhere."""
    weights = [math.exp(table[state, word] + table["", word]) for word in words]
    return [weight / sum(weights) for weight in weights]


def play(family: Any, params: Params, table: Table, seed: int, rng: Random) -> Episode:
    """An episode of the table."""
    given = family.read(params)
    game = family.begin(given, family.play_options(), family.instruction(given), seed)
    seen, found = game.start().observation, Episode()
    for _ in range(MOVES):
        found.states.append(seen.text.partition("\n")[2])
        found.choices.append(seen.admissible)
        found.words += rng.choices(
            seen.admissible, chances(table, found.states[-1], seen.admissible)
        )
        result = game.play(found.words[-1])
        seen = result.observation
        if result.done:
            found.success, found.score = bool(result.success), result.score
            break
    return found


def credit(played: list[Episode], algorithm: Algorithm) -> PolicyCredit:
    """What a group earned, and its advantages."""
    return policy_credit(
        [1 if e.success else -1 for e in played],
        [[()] * len(e.words) for e in played],
        algorithm=algorithm,
        played=Played([e.states for e in played], [e.words for e in played]),
        scores=[float(e.success) if e.score is None else e.score for e in played],
    )


def learn(table: Table, steps: list[tuple[Episode, int, float]], rate: float) -> None:
    """One step along the gradient of the mean of advantage * log p(word)."""
    for episode, turn, advantage in steps:
        state, words = episode.states[turn], episode.choices[turn]
        for word, chance in zip(words, chances(table, state, words), strict=True):
            slope = rate * advantage * ((word == episode.words[turn]) - chance) / ROLLOUTS
            for place in ((state, word), ("", word)):
                table[place] += slope


def advantages(
    groups: list[list[Episode]], algorithm: Algorithm, values: defaultdict[str, float]
) -> list[tuple[Episode, int, float]]:
    """As the run's sample builder and learner find them; a critic's values are a table, which learns the returns."""
    credits = [credit(group, algorithm) for group in groups]
    kept = spread_filter([found.spread for found in credits], algorithm)
    part, options, steps = algorithm.estimator_part, algorithm.estimator_options, []
    for group, found, keep in zip(groups, credits, kept, strict=True):
        for episode, rewards, own in zip(group, found.rewards, found.advantages, strict=True):
            if keep and part.tokens is not None:
                of = [values[state] for state in episode.states]
                known = part.tokens([r or 0.0 for r in rewards], of, [*range(len(of))], options)
                own = tuple(float(a) for a in known.advantages)
                for state, due in zip(episode.states, known.returns, strict=True):
                    values[state] += 0.2 * (float(due) - values[state])
            steps += [(episode, turn, a) for turn, a in enumerate(own) if keep]
    if not algorithm.whiten or not steps:
        return steps
    even = whitened([a for *_, a in steps], [1] * len(steps), ddof=algorithm.std_ddof, eps=1e-6)
    return [(episode, turn, a) for (episode, turn, _), a in zip(steps, even, strict=True)]


def curve(
    seed: int, *, game: str, preset: str, updates: int = 24, loop: int = 0
) -> Iterator[float]:
    """Success in each update.

    After each `loop` updates the table goes back to where the loop began and imitates what the loop has solved (RLoop), with no
    further rollouts.
    """
    family, count, options = GAMES[game]
    tasks = family.generate(count=count, seed=1, options=options)
    algorithm, rng = resolve(preset), Random(seed)  # noqa: S311 (a reproducible draw, not a secret)
    table, values = Table(float), defaultdict[str, float](float)
    first, archive = table.copy(), dict[Rollout, Episode]()
    for update in range(1, updates + 1):
        groups = [
            [play(family, task, table, rng.randrange(2**31), rng) for _ in range(ROLLOUTS)]
            for task in tasks
        ]
        yield fmean(e.success for group in groups for e in group)
        learn(table, advantages(groups, algorithm, values), rate=1.0)
        for task, group in enumerate(groups if loop else ()):
            for n, e in enumerate(group):
                own = Rollout(f"{update}/{task}/{n}", task, update, e.success, " ".join(e.words))
                archive[own] = e
        if loop and update % loop == 0:
            chosen = solutions([*archive], hardest=_HARDEST, distinct=_DISTINCT)
            table = first.copy()
            for _ in range(_EPOCHS if chosen else 0):
                steps = [
                    (archive[r], turn, 1.0) for r in chosen for turn in range(len(archive[r].words))
                ]
                learn(table, steps, rate=1.0)
            first, archive = table.copy(), {}
