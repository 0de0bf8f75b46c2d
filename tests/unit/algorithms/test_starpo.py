"""StarPO and StarPO-S on the three games of RAGEN, with a table of logits (and one of values) in the place of models.

Rewards, advantages, the filter and the estimator are the presets' own; what is learnt here a table learns, not a language model.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from random import Random
from statistics import fmean
from typing import Any

import pytest

from environments.sokoban.family import FAMILY as SOKOBAN
from environments.toy_text.family import FAMILY as TOY
from triforge.algorithms.advantages import whitened
from triforge.algorithms.algorithm import Algorithm, resolve
from triforge.algorithms.credit import Played, PolicyCredit, policy_credit
from triforge.algorithms.filters import spread_filter
from triforge.types import Params

pytest.importorskip("gymnasium", reason="pip install -c constraints.txt -e '.[gymnasium]'")

ROLLOUTS, MOVES = 8, 8
GAMES: dict[str, tuple[Any, int, Params]] = {  # family, tasks, options of its generator
    "bandit": (TOY, 12, {"games": ["bandit"]}),
    "frozen_lake": (TOY, 3, {"games": ["frozen_lake"], "size": 3}),
    "sokoban": (SOKOBAN, 3, {"moves": [1, 3]}),
}
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


def trained(name: str, preset: str, updates: int, seed: int) -> tuple[float, float]:
    """Success in the first updates, and in the last."""
    family, count, options = GAMES[name]
    tasks = family.generate(count=count, seed=1, options=options)
    algorithm, rng, success = resolve(preset), Random(seed), list[float]()
    table, values = Table(float), defaultdict[str, float](float)
    for _ in range(updates):
        groups = [
            [play(family, task, table, rng.randrange(2**31), rng) for _ in range(ROLLOUTS)]
            for task in tasks
        ]
        success.append(fmean(e.success for group in groups for e in group))
        learn(table, advantages(groups, algorithm, values), rate=1.0)
    return fmean(success[:3]), fmean(success[-5:])


@pytest.mark.parametrize("preset", ["starpo", "starpo_s"])
@pytest.mark.parametrize("game", ["frozen_lake", "sokoban"])
def test_a_table_learns_to_find_its_way(game: str, preset: str) -> None:
    before, after = trained(game, preset, updates=24, seed=0)
    assert after > before + 0.2, (before, after)


def test_on_the_bandit_a_critic_finds_the_better_arm_and_comparing_few_pulls_does_not() -> None:
    """Of eight pulls most groups have no large pay: standardised within them, the calm arm looks better than it is."""
    (_, compared), (before, after) = (trained("bandit", p, 20, 0) for p in ("starpo", "starpo_s"))
    assert after > before + 0.2 > compared, (compared, before, after)
