"""Tree rollouts: a group is one episode with K candidates a turn, each tried in the same state; the best is played on.

A copy of the environment in that state is the environment's own (`Forks`), or a fresh environment in which the responses so far
are played again: same task and seed, same episode.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace

from methods.at_grpo.options import AtGrpoOptions
from triforge.errors import ContextFullError, EnvError
from triforge.event_loop import together
from triforge.rollout.live import LiveEnvironment, called
from triforge.rollout.protocols import Environment, Forks, Generate, Reset, StepResult
from triforge.rollout.scoring import outcome
from triforge.rollout.strategies import RolloutStrategy, context_full
from triforge.rollout.transcript import Transcript, sound
from triforge.types import Outcome


class Trunk(LiveEnvironment):
    """The environment in which the best responses so far were played, and its copies for the candidates of a turn."""

    _seen = ""
    _tried: dict[str, tuple[Environment, StepResult]]

    @property
    def state(self) -> str:
        """A name of the responses so far: equal responses, equal names."""
        return hashlib.sha256(json.dumps(self.played).encode()).hexdigest()[:16]

    async def start(self) -> Reset:
        """Begin the episode."""
        reset = await super().start()
        self._seen = reset.observation.text
        return reset

    async def results(self, responses: Sequence[str]) -> list[StepResult]:
        """Return the result of each response from here; equal ones are played once."""
        distinct = [*dict.fromkeys(responses)]
        places = [self._environment, *await together(self._copy() for _ in distinct[1:])]
        turn = len(self.played)
        results = await together(
            self._step(place, response, turn)
            for place, response in zip(places, distinct, strict=True)
        )
        self._tried = dict(zip(distinct, zip(places, results, strict=True), strict=True))
        return [self._tried[response][1] for response in responses]

    async def continue_with(self, response: str) -> None:
        """Continue from one of the responses that were tried; the copies for others are closed."""
        self._environment, result = self._tried.pop(response)
        self.played.append(response)
        self._seen = result.observation.text
        await self._close([environment for environment, _ in self._tried.values()])

    async def _copy(self) -> Environment:
        own = self._environment
        if isinstance(own, Forks) and (copy := await called(own.fork, "fork")) is not None:
            self._open.append(copy)
            return copy
        environment, reset = await self._fresh()
        seen = reset.observation.text
        for turn, response in enumerate(self.played):
            seen = (await self._step(environment, response, turn)).observation.text
        if seen != self._seen:
            error = EnvError(
                f"after the same {len(self.played)} responses the environment showed {seen[:200]!r}, then {self._seen[:200]!r}: "
                "tree rollouts need environments that give the same episode for the same seed, or that have never_blocks, a fork "
                "and no success_at"
            )
            error.retryable = False
            raise error
        return environment


class TreeRollouts(RolloutStrategy):
    """All rollouts of a group are candidates of one episode."""

    environment = Trunk

    def episodes(self) -> list[Sequence[int]]:
        """Return all rollouts as one episode."""
        return [range(self.group.rollouts)]

    async def play(
        self, environment: LiveEnvironment, sample: Generate, rows: Sequence[Transcript]
    ) -> Outcome:
        """Sample and try a candidate a row each turn, and play on the best; of equal ones the first."""
        assert isinstance(environment, Trunk)
        options = AtGrpoOptions.model_validate(
            self.group.extra.get(self.group.env_adapter.strategy, {})
        )
        reset = await environment.start()
        observation, why = reset.observation, None
        images, earned = await rows[0].kept(observation), list[float | None]()
        for row in rows:
            row.system = reset.system
        for turn in range(self.group.env_adapter.max_steps):
            requests = [row.request(observation, images, turn) for row in rows]
            try:
                replies = await together(sample(request) for request in requests)
            except ContextFullError as error:
                why = context_full(error, turn)
                break
            outputs = [sound(reply) for reply in replies]
            results = await environment.results([output.text for output in outputs])
            rewards = [candidate_reward(result, options.team_weight) for result in results]
            best = max(range(len(rows)), key=rewards.__getitem__)
            state = f"{turn}/{observation.agent_id}/{environment.state}"
            for n, (row, reply, output) in enumerate(zip(rows, replies, outputs, strict=True)):
                followed = (
                    replace(results[n], reward=rewards[n]),
                    await row.kept(results[n].observation),
                )
                seen = (observation, images)
                row.add(seen, reply, output, followed, state=state, chosen=n == best)
            await environment.continue_with(outputs[best].text)
            for row in rows:
                row.prefixes = dict(rows[best].prefixes)
            result, images = results[best], rows[best].steps[-1].next_images
            observation = result.observation
            earned.append(result.reward)
            if result.done:
                break
        return outcome(result, earned, why)


def candidate_reward(result: StepResult, team_weight: float) -> float:
    """Return `team_weight * r_team + r_local` of a candidate for a turn.

    r_team is the reward of its step, or at the end of an episode without rewards the score or success; r_local is
    `StepResult.local`.
    """
    end = result.score if result.score is not None else float(result.success or 0.0)
    team = result.reward if result.reward is not None else end if result.done else 0.0
    return team_weight * team + (result.local or 0.0)
