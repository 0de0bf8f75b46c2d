"""The games of RAGEN, learnt by a table of logits or a tiny language model, and a table of values: StarPO, StarPO-S and RLoop.

Rewards, advantages, the filter, the estimator and the archive are the product's own.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from copy import copy
from random import Random
from statistics import fmean
from typing import Any, Protocol

from environments.sokoban.family import FAMILY as SOKOBAN
from environments.toy_text.family import FAMILY as TOY
from experiments.toys.episode import Episode, Steps
from experiments.toys.reader import Reader
from methods.rloop.archive import Rollout, solutions
from triforge.algorithms import samples
from triforge.algorithms.advantages import whitened
from triforge.algorithms.algorithm import Algorithm, resolve
from triforge.algorithms.credit import credit_steps
from triforge.algorithms.filters import spread_filter
from triforge.types import Params

ROLLOUTS, MOVES = 8, 8
GAMES: dict[str, tuple[Any, int, Params]] = {  # family, tasks, options of its generator
    "bandit": (TOY, 12, {"games": ["bandit"]}),
    "frozen_lake": (TOY, 3, {"games": ["frozen_lake"], "size": 3}),
    "sokoban": (SOKOBAN, 3, {"moves": [1, 3]}),
}
_HARDEST, _DISTINCT, _EPOCHS = 0.9, 8, 4  # of RLoop


class Policy(Protocol):
    """A policy over words in a state."""

    def reads(self, text: str) -> str:
        """Return the state, of an observation."""

    def chances(self, state: str, words: tuple[str, ...]) -> list[float]:
        """Return the probability of each word."""

    def learn(self, steps: Steps, rate: float) -> None:
        """One step along the gradient of the mean of advantage * log p(word)."""


class Table(defaultdict[tuple[str, str], float]):
    """Logits of words in a state, and everywhere."""

    def reads(self, text: str) -> str:
        """Return what follows the first line."""
        return text.partition("\n")[2]

    def chances(self, state: str, words: tuple[str, ...]) -> list[float]:
        """Return the softmax of the logits of each word here and everywhere."""
        weights = [math.exp(self[state, word] + self["", word]) for word in words]
        return [weight / sum(weights) for weight in weights]

    def learn(self, steps: Steps, rate: float) -> None:
        """See `Policy`."""
        for episode, turn, advantage in steps:
            state, words = episode.states[turn], episode.choices[turn]
            for word, chance in zip(words, self.chances(state, words), strict=True):
                slope = rate * advantage * ((word == episode.words[turn]) - chance) / ROLLOUTS
                for place in ((state, word), ("", word)):
                    self[place] += slope


def play(family: Any, params: Params, policy: Policy, seed: int, rng: Random) -> Episode:
    """Return an episode of the policy."""
    given = family.read(params)
    game = family.begin(given, family.play_options(), family.instruction(given), seed)
    seen, found = game.start().observation, Episode()
    for _ in range(MOVES):
        found.states.append(policy.reads(seen.text))
        found.choices.append(seen.admissible)
        weights = policy.chances(found.states[-1], seen.admissible)
        found.words += rng.choices(seen.admissible, weights)
        result = game.play(found.words[-1])
        seen = result.observation
        if result.done:
            found.success, found.score = bool(result.success), result.score
            break
    return found


def rollout_of(episode: Episode) -> samples.Rollout:
    """Return an episode as credit reads it."""
    return samples.Rollout(
        outcome=1 if episode.success else -1,
        score=float(episode.success) if episode.score is None else episode.score,
        steps=[
            samples.JudgedStep(response=samples.Sample(), state=state, action=word)
            for state, word in zip(episode.states, episode.words, strict=True)
        ],
    )


def advantages(
    groups: list[list[Episode]], algorithm: Algorithm, values: defaultdict[str, float]
) -> Steps:
    """As the run's sample builder and learner find them; a critic's values are a table, which learns the returns."""
    credited = [[rollout_of(episode) for episode in group] for group in groups]
    spreads = [credit_steps(rollouts, algorithm).spread for rollouts in credited]
    kept = spread_filter(spreads, algorithm)
    part, options, steps = algorithm.estimator_part, algorithm.estimator_options, []
    for group, rollouts, keep in zip(groups, credited, kept, strict=True):
        for episode, rollout in zip(group, rollouts, strict=True):
            own = [step.response.advantage for step in rollout.steps]
            if keep and part.tokens is not None:
                rewards = [step.response.reward or 0.0 for step in rollout.steps]
                of = [values[state] for state in episode.states]
                known = part.tokens(rewards, of, [*range(len(of))], options)
                own = [float(a) for a in known.advantages]
                for state, due in zip(episode.states, known.returns, strict=True):
                    values[state] += 0.2 * (float(due) - values[state])
            steps += [(episode, turn, a) for turn, a in enumerate(own) if keep]
    if not algorithm.whiten or not steps:
        return steps
    even = whitened([a for *_, a in steps], [1] * len(steps), ddof=algorithm.std_ddof, eps=1e-6)
    return [(episode, turn, a) for (episode, turn, _), a in zip(steps, even, strict=True)]


def curve(
    seed: int, *, game: str, preset: str, updates: int = 24, loop: int = 0, reader: bool = False
) -> Iterator[float]:
    """Success in each update, of a table or of a language model (`reader`).

    After each `loop` updates the table goes back to where the loop began and imitates what the loop has solved (RLoop), with no
    further rollouts.
    """
    family, count, options = GAMES[game]
    tasks = family.generate(count=count, seed=1, options=options)
    algorithm, rng = resolve(preset), Random(seed)  # noqa: S311 (a reproducible draw, not a secret)
    policy: Policy = Reader(seed) if reader else Table(float)
    values, first = defaultdict[str, float](float), copy(policy)
    archive = dict[Rollout, Episode]()
    for update in range(1, updates + 1):
        groups = [
            [play(family, task, policy, rng.randrange(2**31), rng) for _ in range(ROLLOUTS)]
            for task in tasks
        ]
        yield fmean(e.success for group in groups for e in group)
        policy.learn(advantages(groups, algorithm, values), rate=1.0)
        for task, group in enumerate(groups if loop else ()):
            for n, e in enumerate(group):
                own = Rollout(f"{update}/{task}/{n}", task, update, e.success, " ".join(e.words))
                archive[own] = e
        if loop and update % loop == 0:
            chosen = solutions([*archive], hardest=_HARDEST, distinct=_DISTINCT)
            policy = copy(first)
            for _ in range(_EPOCHS if chosen else 0):
                steps = [
                    (archive[r], turn, 1.0) for r in chosen for turn in range(len(archive[r].words))
                ]
                policy.learn(steps, rate=1.0)
            first, archive = copy(policy), {}
