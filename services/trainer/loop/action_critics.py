"""The critic of candidate actions beside a run: it learns from the run's own records, and rollout workers read it as a file.

    records of a step -> transitions -> online partition ┐
    records of `offline_run` ----------> offline partition ┴-> updates -> runs/<id>/action_critic/<step>.npz

A step that is taken again begins with the file of the one before, and the records say what was played until then, so it learns
the same again. With an offline run the critic learns from that alone first, as step 0. Actions of the policy at a state are what was
sampled there: what the rollouts of the group said in it, and the candidates that the critic chose from, kept beside the response, so
no update samples anew.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, count, groupby, takewhile
from operator import itemgetter
from typing import Any

import numpy as np

from triforge.algorithms.action_critic import (
    CriticEnsemble,
    Floats,
    Replay,
    Transition,
    returns_of,
    text_features,
)
from triforge.config import RunConfig
from triforge.errors import ConfigError
from triforge.rollout.best_of_k import OTHERS, critic_name, critic_state, read_critic
from triforge.rollout.seeds import nth_seed
from triforge.store.artifacts import ArtifactStore
from triforge.store.step_records import read_step_records, step_record_name

_WIDTH = 512  # features of a text
_COLUMNS = (
    "group_id", "trajectory_id", "step_index", "purpose", "instruction", "observation", "response",
    "env_reward", "score", "considered", "agent_id",
)  # fmt: skip

Record = Mapping[str, Any]
Features = Callable[[str, str], Floats]


class ActionCritic:
    """Learns after each step's rollouts; does nothing in a run whose strategy asks no critic."""

    def __init__(self, artifacts: ArtifactStore, run_id: str, config: RunConfig) -> None:
        self._artifacts, self._run_id, self._seed = artifacts, run_id, config.run.seed
        self._section = config.trainer.action_critic
        self._wanted = config.env_adapter.strategy == "critic_best_of_k"
        self._replay = Replay(online=deque(maxlen=self._section.capacity))
        self._kept = config.run.staleness_bound + 3  # files, for groups that are played late
        self._known = -1  # step up to which the replay holds what was played

    def learn(self, step: int, records: Sequence[Record]) -> dict[str, float]:
        """Take the step's records in, learn, and write the critic; returns measures. Step 0 knows the offline run only. Blocking.

        Raises:
            ConfigError: the offline run has no recorded steps.
        """
        if not self._wanted:
            return {}
        if self._known < 0:
            self._remember(step)
        if self._known < step:
            self._replay.online.extend(self._transitions(records))
            self._known = step
        if not self._replay.online and not self._replay.offline:
            return {}
        critic = read_critic(self._artifacts, self._run_id, step - 1, self._section)
        critic = critic or CriticEnsemble(_WIDTH, self._section, seed=self._seed)
        rng, found = np.random.default_rng(nth_seed(self._seed, step)), list[dict[str, float]]()
        for _ in range(self._section.updates if step else self._section.offline_updates):
            batch = self._replay.draw(self._section.batch, self._section.online_share, rng)
            found.append(critic.update(batch, rng))
        self._artifacts.write(critic_name(self._run_id, step), critic.saved())
        if step >= self._kept:
            self._artifacts.delete(critic_name(self._run_id, step - self._kept))
        measures = {name: float(np.mean([one[name] for one in found])) for name in found[0]}
        sizes = {"online": len(self._replay.online), "offline": len(self._replay.offline)}
        return {f"action_critic/{name}": float(n) for name, n in {**measures, **sizes}.items()}

    def _remember(self, step: int) -> None:
        """What was played before the first step that is taken here, and what the offline run played."""
        own, other = self._run_id, self._section.offline_run
        self._replay.online.extend(self._newest(own, range(1, step)))
        if other:
            self._replay.offline = self._newest(other, count(1))
            if not self._replay.offline:
                raise ConfigError(
                    f"trainer.action_critic.offline_run: given {other!r}, expected a run of this deployment with recorded steps"
                )

    def _newest(self, run_id: str, steps: Iterable[int]) -> list[Transition]:
        """The last ones of consecutive steps, as many as are kept; no step before those is read."""
        found, most = list[Transition](), self._section.capacity
        names = (step_record_name(run_id, step) for step in steps)
        for name in reversed([*takewhile(self._artifacts.exists, names)]):
            records = read_step_records(self._artifacts, name, _COLUMNS)
            found = [*self._transitions(records), *found][-most:]
            if len(found) == most:
                break
        return found

    def _transitions(self, records: Iterable[Record]) -> Iterator[Transition]:
        measured = (r for r in records if r["purpose"] == "train" and r["score"] is not None)
        for _, group in groupby(measured, itemgetter("group_id")):
            rows = [[*own] for _, own in groupby(group, itemgetter("trajectory_id"))]
            said: dict[str, list[str]] = {}
            states = [_states(row) for row in rows]
            for state, record in zip(chain(*states), chain(*rows), strict=True):
                known = said.setdefault(state, [])
                for text in (record["response"], *(record.get("considered") or ())):
                    if text not in known and len(known) < OTHERS:
                        known.append(text)
            features = cache(_features)  # a text stands in several transitions
            for own, row in zip(states, rows, strict=True):
                yield from self._of_trajectory(row, own, said, features)

    def _of_trajectory(
        self,
        row: Sequence[Record],
        states: Sequence[str],
        said: Mapping[str, list[str]],
        features: Features,
    ) -> Iterator[Transition]:
        """Its steps; what the score is beyond their rewards is earned by the last one."""
        rewards = [record["env_reward"] or 0.0 for record in row]
        rewards[-1] += row[-1]["score"] - sum(rewards)
        values = returns_of(rewards, self._section.gamma)
        others = [np.stack([features(state, text) for text in said[state]]) for state in states]
        for n, record in enumerate(row):
            yield Transition(
                taken=features(states[n], record["response"]),
                sampled=others[n],
                following=others[n + 1] if n + 1 < len(row) else None,
                reward=rewards[n],
                value=values[n],
            )


def _states(row: Sequence[Record]) -> list[str]:
    """What the critic reads of each step's state; the past is that of the agent that answers."""
    pasts, found = defaultdict[str | None, list[str]](list), list[str]()
    for record in row:
        past, seen = pasts[record.get("agent_id")], record["observation"]
        found.append(critic_state(record["instruction"], past, seen))
        past += (seen, record["response"])
    return found


def _features(state: str, action: str) -> Floats:
    return text_features(state, action, _WIDTH)
