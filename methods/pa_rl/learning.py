"""The critic of a run's candidate actions: it learns from the run's own records, and rollout workers read it as a file.

    records of a step -> transitions -> online partition ┐
    records of `offline_run` ----------> offline partition ┴-> updates -> runs/<id>/action_critic/<step>.npz

A repeated step begins with the file of the step before, and the records hold what was played until then, so the critic learns the
same again. With an offline run the critic learns from that alone first, as step 0. The policy's actions in a state are those that
were sampled there: the responses of the group's rollouts in it, and the candidates that the critic selected from, which are on
record. No update samples anew.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, count, groupby, takewhile
from operator import itemgetter
from typing import Any

import numpy as np

from methods.pa_rl.best_of_k import OTHERS, critic_name, critic_state, read_critic
from methods.pa_rl.critic import (
    CriticEnsemble,
    Floats,
    Replay,
    Transition,
    returns_of,
    text_features,
)
from methods.pa_rl.options import PaRlOptions
from triforge.config import RunConfig
from triforge.errors import ConfigError
from triforge.rollout.seeds import nth_seed
from triforge.store.artifacts import ArtifactStore
from triforge.store.step_records import read_step_records, step_record_name

_WIDTH = 512  # features of a text
_COLUMNS = (
    "group_id", "trajectory_id", "step_index", "purpose", "instruction", "observation", "response",
    "env_reward", "score", "step_extra", "agent_id",
)  # fmt: skip

Record = Mapping[str, Any]
Features = Callable[[str, str], Floats]


class ActionCritic:
    """Learns after each step's rollouts, in runs whose strategy reads the critic."""

    def __init__(
        self, artifacts: ArtifactStore, run_id: str, config: RunConfig, options: PaRlOptions
    ) -> None:
        self._artifacts, self._run_id, self._options = artifacts, run_id, options
        self._seed, self._read = config.run.seed, not config.env_adapter.chosen.draws_policy
        self._replay = Replay(online=deque(maxlen=options.capacity))
        self._kept = config.run.staleness_bound + 3  # files, for groups that are played late
        self._known = -1  # step up to which the replay holds what was played

    def learn(self, step: int, records: Sequence[Record]) -> dict[str, float]:
        """Add the step's records to the replay, learn, and write the critic; return measures. Blocking.

        Raises:
            ConfigError: the offline run has no recorded steps.
        """
        if not self._read:
            return {}
        if self._known < 0:
            self._remember(step)
        if self._known < step:
            self._replay.online.extend(self._transitions(records))
            self._known = step
        if not self._replay.online and not self._replay.offline:
            return {}
        options, run_id = self._options, self._run_id
        critic = read_critic(self._artifacts, run_id, step - 1, options)
        critic = critic or CriticEnsemble(_WIDTH, options, seed=self._seed)
        rng, updates = np.random.default_rng(nth_seed(self._seed, step)), list[dict[str, float]]()
        for _ in range(options.updates if step else options.offline_updates):
            batch = self._replay.draw(options.batch, options.online_share, rng)
            updates.append(critic.update(batch, rng))
        self._artifacts.write(critic_name(run_id, step), critic.saved())
        if step >= self._kept:
            self._artifacts.delete(critic_name(run_id, step - self._kept))
        means = {name: float(np.mean([one[name] for one in updates])) for name in updates[0]}
        sizes = {"online": len(self._replay.online), "offline": len(self._replay.offline)}
        return {f"action_critic/{name}": float(n) for name, n in {**means, **sizes}.items()}

    def _remember(self, step: int) -> None:
        """Fill the replay with the rollouts before the first step of this process, and with those of the offline run."""
        own, other = self._run_id, self._options.offline_run
        self._replay.online.extend(self._newest(own, range(1, step)))
        if other:
            self._replay.offline = self._newest(other, count(1))
            if not self._replay.offline:
                raise ConfigError(
                    f"methods.pa_rl.offline_run: given {other!r}, expected a run of this deployment with recorded steps"
                )

    def _newest(self, run_id: str, steps: Iterable[int]) -> list[Transition]:
        """Return the latest transitions of consecutive steps, as many as are kept; earlier steps are not read."""
        found, most = list[Transition](), self._options.capacity
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
            texts: dict[str, list[str]] = {}
            states = [_states(row) for row in rows]
            for state, record in zip(chain(*states), chain(*rows), strict=True):
                known = texts.setdefault(state, [])
                for text in (record["response"], *_candidates(record)):
                    if text not in known and len(known) < OTHERS:
                        known.append(text)
            features = cache(_features)  # a text stands in several transitions
            for own, row in zip(states, rows, strict=True):
                yield from self._of_trajectory(row, own, texts, features)

    def _of_trajectory(
        self,
        row: Sequence[Record],
        states: Sequence[str],
        texts: Mapping[str, list[str]],
        features: Features,
    ) -> Iterator[Transition]:
        """Yield the steps of a trajectory; the last one earns the part of the score that exceeds their rewards."""
        rewards = [record["env_reward"] or 0.0 for record in row]
        rewards[-1] += row[-1]["score"] - sum(rewards)
        values = returns_of(rewards, self._options.gamma)
        others = [np.stack([features(state, text) for text in texts[state]]) for state in states]
        for n, record in enumerate(row):
            yield Transition(
                taken=features(states[n], record["response"]),
                sampled=others[n],
                following=others[n + 1] if n + 1 < len(row) else None,
                reward=rewards[n],
                value=values[n],
            )


def _candidates(record: Record) -> Sequence[str]:
    extra = json.loads(record.get("step_extra") or "{}")
    texts: Sequence[str] = extra.get("pa_rl", ())
    return texts


def _states(row: Sequence[Record]) -> list[str]:
    """Return the text of each step's state; the past is that of the agent that answers."""
    pasts, found = defaultdict[str | None, list[str]](list), list[str]()
    for record in row:
        past, seen = pasts[record.get("agent_id")], record["observation"]
        found.append(critic_state(record["instruction"], past, seen))
        past += (seen, record["response"])
    return found


def _features(state: str, action: str) -> Floats:
    return text_features(state, action, _WIDTH)
