"""PA-RL in a continuous toy: an ensemble of critics improves a Gaussian policy over what it cloned, offline and then online."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from methods.pa_rl.critic import (
    CriticEnsemble,
    CriticOptions,
    Floats,
    Replay,
    Transition,
    returns_of,
)
from triforge.algorithms.jobs.imitation import best_of

SMALL = CriticOptions(members=3, hidden=16, learning_rate=0.01, tau=0.05, batch=32)


class Steering:
    """Two turns in a state s of [-1, 1], then in -s; an action a of [-1, 1] earns 1 - (a - 0.9 s)^2."""

    sigma = 0.2

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.slope: Floats = np.zeros(2)  # of the policy's mean over (1, s)
        self.critic = CriticEnsemble(3, SMALL, seed=seed)
        self.replay = Replay()

    def sample(self, s: float, count: int) -> Floats:
        """Actions of the policy."""
        mean = self.slope[0] + self.slope[1] * s
        return np.clip(self.rng.normal(mean, self.sigma, (count, 1)), -1.0, 1.0)

    def features(self, s: float, actions: Floats) -> Floats:
        """Return the features of state and actions."""
        return np.concatenate([np.full_like(actions, s), actions, s * actions], axis=1)

    def improved(self, s: float) -> tuple[Floats, list[float]]:
        """Return the best of K, then steps upwards within the bounds, each the best on its way; and their values."""

        def q(actions: Floats) -> Floats:
            return self.critic.values(self.features(s, actions))

        actions = self.sample(s, 8)
        best = actions = actions[np.argsort(-q(actions), kind="stable")[:4]]
        for _ in range(5):
            slope = (q(actions + 1e-4) - q(actions - 1e-4)) / 2e-4
            actions = np.clip(actions + 0.1 * slope[:, None], -1.0, 1.0)
            best = np.where((q(actions) > q(best))[:, None], actions, best)
        return best, [*q(best)]

    def episode(self, act: object = None) -> list[Transition]:
        """Return what was done and earned, by the policy or by the data's."""
        s = float(self.rng.uniform(-1, 1))
        states, rows, rewards = (s, -s), [], []
        for state in states:
            if act is None:  # the data: it never looks at the state
                action: Floats = np.clip(self.rng.normal(0.0, 0.5, (1, 1)), -1.0, 1.0)
            else:
                actions, values = self.improved(state)
                action = actions[[int(np.argmax(values))]]
            rows.append(action)
            rewards.append(1.0 - (float(action[0, 0]) - 0.9 * state) ** 2)
        after = (self.features(-s, self.sample(-s, 4)), None)
        return [
            Transition(
                self.features(state, row)[0], self.features(state, self.sample(state, 2)), following,
                reward, value,
            )
            for state, row, following, reward, value in zip(
                states, rows, after, rewards, returns_of(rewards, 0.99), strict=True
            )
        ]  # fmt: skip

    def learn(self, updates: int) -> float:
        """Return updates of the critic; returns by how much it overestimates."""
        for _ in range(updates):
            found = self.critic.update(self.replay.draw(32, 0.5, self.rng), self.rng)
        return found["overestimate"]

    def distil(self) -> None:
        """Fit the mean to the selected actions: the supervised loss of a Gaussian."""
        states = self.rng.uniform(-1, 1, 25)
        chosen = []
        for s in states:
            actions, values = self.improved(float(s))
            chosen.append(float(actions[self.rng.choice(len(actions), p=best_of(values)), 0]))
        self.clone(states, np.array(chosen))

    def clone(self, states: Floats, actions: Floats) -> None:
        """Fit the likeliest line through actions."""
        over = np.stack([np.ones_like(states), states], axis=1)
        self.slope = np.asarray(np.linalg.lstsq(over, actions, rcond=None)[0], dtype=np.float64)

    def reward(self) -> float:
        """Return expected reward of a turn of the policy."""
        states = np.linspace(-1, 1, 41)
        miss = self.slope[0] + self.slope[1] * states - 0.9 * states
        return float(1.0 - (miss**2).mean() - self.sigma**2)


def rounds(seed: int, *, improves: bool = True) -> Iterator[tuple[float, float]]:
    """Reward of a turn after cloning, after distilling from the offline critic, and after each of two rounds online.

    Each with the overestimation of the critic. One that does not improve clones what it has played instead, of equal samples.
    """
    world, data = Steering(seed), list[Transition]()
    for _ in range(80):
        data += world.episode()
    world.replay.offline = data

    def clone() -> None:
        taken = np.stack([t.taken for t in [*world.replay.offline, *world.replay.online]])
        world.clone(taken[:, 0], taken[:, 1])

    clone()
    yield world.reward(), 0.0
    over = world.learn(150) if improves else 0.0
    for _ in range(3 if improves else 0):
        world.distil()
    yield world.reward(), over
    for _ in range(2):
        for _ in range(15):
            world.replay.online.extend(world.episode("improved" if improves else None))
        if improves:
            over = world.learn(60)
            world.distil()
        else:
            clone()
        yield world.reward(), over


def curve(seed: int, *, improves: bool) -> list[float]:
    """Return the rewards of `rounds`."""
    return [reward for reward, _ in rounds(seed, improves=improves)]
