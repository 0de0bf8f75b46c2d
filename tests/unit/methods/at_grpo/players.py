"""Two agents with tables of logits cross small grids: AT-GRPO's tree of candidates compared with whole rollouts, at equal samples."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from environments.plan_path.family import FAMILY
from services.trainer.credit.options import Limits, SampleOptions
from services.trainer.credit.samples import Samples, build_samples
from tests.unit.methods.at_grpo.softmax import Table
from triforge.algorithms.algorithm import Algorithm, resolve
from triforge.config import EnvAdapterSection
from triforge.rollout.episode import run_group
from triforge.rollout.protocols import Generate
from triforge.types import GenerateReply, GenerateRequest, GroupTask, JudgedGroup, Sampling, Task

WORDS = ("north", "east", "south", "west", "up", "right", "down", "left")
EVERYTHING = Limits(max_tokens=1000, max_rows=0, response=1)
PRESETS: dict[str, Algorithm] = {
    "at_grpo": resolve("at_grpo"),
    "group": resolve("grpo", {"kl_beta": 0.0, "aggregation": "token_mean"}),
}
RATE = 0.3


def tasks() -> list[Task]:
    """Three grids of 3 by 3."""
    drafts = [
        FAMILY.validate(p)
        for p in FAMILY.generate(count=3, seed=5, options={"size": 3, "slack": 1})
    ]
    return [
        Task(id=f"t{n}", pool_id="p", slot=f"t{n}", family="plan_path", instruction=d.instruction, params=d.params)
        for n, d in enumerate(drafts)
    ]  # fmt: skip


async def play(policy: Generate, strategy: str, seed: int, **how: Any) -> list[JudgedGroup]:
    """Return a group of each grid."""
    found = []
    for task in tasks():
        played_so = EnvAdapterSection(strategy=strategy, max_steps=20)
        asked = GroupTask(
            group_id=f"{task.id}-{seed}", run_id="toy", step=0, task_id=task.id, seed=seed, rollouts=4,
            env_adapter=played_so, **{"purpose": "train", "sampling": Sampling(max_new_tokens=4)} | how,
        )  # fmt: skip
        played = await run_group(lambda: FAMILY.make({}), policy, task, asked)
        found.append(JudgedGroup(played=played, votes=(None,) * 4))
    return found


class Players:
    """A table for both agents or one for each, exchanged where they are `swapped`."""

    def __init__(self, *, shared: bool) -> None:
        one = Table(WORDS)
        self.tables = {"planner": one, "mover": one if shared else Table(WORDS)}
        self.swapped = False

    async def __call__(self, request: GenerateRequest) -> GenerateReply:
        """Answer as the agent that is asked."""
        plans = "You are the planner" in request.messages[-1].text
        return await self.tables["planner" if plans is not self.swapped else "mover"](request)

    def learn(self, samples: Samples) -> None:
        """Each table learns from its agent's rows."""
        agents = {f"{r['trajectory_id']}/{r['segment']}": r["agent_id"] for r in samples.records}
        for agent, table in self.tables.items():
            own = [row for row in samples.rows["policy"] if agents[row.key] == agent]
            table.learn(own, rate=RATE)


async def training(
    strategy: str, seed: int, samples: int, every: int, players: Players
) -> AsyncIterator[float]:
    """How often the players succeed after each so many sampled responses that they were trained on."""
    seen, shown = 0, 0
    while seen < samples:
        seed += 1
        found = build_samples(await play(players, strategy, seed), options(PRESETS[strategy]))
        players.learn(found)
        seen += len(found.records)
        while seen >= shown + every and shown < samples:
            shown += every
            yield await success(players)


async def success(policy: Generate) -> float:
    """Return the success of 48 episodes that train nothing."""
    found = [
        g for seed in range(4) for g in await play(policy, "group", 1000 + seed, purpose="evaluate")
    ]
    values = [t.outcome.value for g in found for t in g.played.trajectories]
    return values.count(1) / len(values)


def options(algorithm: Algorithm) -> SampleOptions:
    """Return the options of a run without limits."""
    return SampleOptions(
        algorithm=algorithm, players={"policy": (1, EVERYTHING)}, judging={"reward": (1, EVERYTHING)},
        seed=1,
    )  # fmt: skip
