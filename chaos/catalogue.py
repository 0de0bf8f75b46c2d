"""All scenarios, and how often each is played."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from chaos import agents, deaths, troubles
from chaos.rounds import Round


async def undisturbed(r: Round) -> None:
    """Nothing happens; what comes of it is what the others are compared with."""
    await r.submit()
    await r.end(undisturbed=True)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One way to hurt a run.

    Attributes:
        play: plays one round; its first line of documentation is the table's sentence.
        rounds: how often if there is time, each time at other moments.
        quick: whether it is in the selection that `make test` plays.
    """

    name: str
    play: Callable[[Round], Awaitable[None]]
    rounds: int = 1
    quick: bool = False

    @property
    def sentence(self) -> str:
        return (self.play.__doc__ or "").splitlines()[0]


SCENARIOS = (
    Scenario(name="undisturbed", play=undisturbed, quick=True),
    Scenario(name="rollout-workers", play=deaths.rollout_workers, rounds=2),
    Scenario(name="judge-workers", play=deaths.judge_workers, rounds=2),
    Scenario(name="adapt-workers", play=deaths.adapt_workers, rounds=2),
    Scenario(name="long-episodes", play=deaths.long_episodes),
    Scenario(name="long-judging", play=deaths.long_judging),
    Scenario(name="learners", play=deaths.learners, rounds=2),
    Scenario(name="promotion", play=deaths.promotion),
    Scenario(name="trainer", play=deaths.trainer, rounds=2),
    Scenario(name="engines", play=deaths.engines),
    Scenario(name="apis", play=deaths.apis),
    Scenario(name="everything", play=deaths.everything, rounds=2),
    Scenario(name="supervisor", play=deaths.supervisor),
    Scenario(name="storm", play=deaths.storm, rounds=2),
    Scenario(name="broker-restarts", play=troubles.broker_restarts, rounds=2, quick=True),
    Scenario(name="broker-hangs", play=troubles.broker_hangs),
    Scenario(name="database-held", play=troubles.database_held),
    Scenario(name="full-disk", play=troubles.full_disk),
    Scenario(name="full-state", play=troubles.full_state),
    Scenario(name="bad-messages", play=troubles.bad_messages),
    Scenario(name="slow-engine", play=troubles.slow_engine),
    Scenario(name="silent-engine", play=troubles.silent_engine),
    Scenario(name="wrong-clocks", play=troubles.wrong_clocks),
    Scenario(name="zombie-workers", play=troubles.zombie_workers),
    Scenario(name="zombie-learner", play=troubles.zombie_learner),
    Scenario(name="zombie-orchestrator", play=troubles.zombie_orchestrator),
    Scenario(name="sessions", play=agents.sessions),
    Scenario(name="twice-and-late", play=troubles.delivered_twice_and_late, rounds=2, quick=True),
)


def chosen(names: list[str], *, quick: bool) -> list[Scenario]:
    """Return the scenarios of these names, or all, or the quick ones.

    Raises:
        KeyError: there is no scenario of a name.
    """
    by_name = {scenario.name: scenario for scenario in SCENARIOS}
    if names:
        return [by_name[name] for name in names]
    return [scenario for scenario in SCENARIOS if scenario.quick or not quick]
