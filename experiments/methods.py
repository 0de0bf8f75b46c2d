"""The experiment on methods other than RLAnything: the learning curve of each and of its baseline.

experiments/results/methods.md is its plan. What a table can learn a table learns (`experiments.toys`); the others train the tiny policy of the
household as the experiment on tasks does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from demo.settings import DemoSettings, Joined, SupervisedSettings, WarmStart
from experiments.settings import QUICK, Arm, Settings, shortened
from experiments.study import Study

SEEDS = (1, 2, 3)


@dataclass(frozen=True)
class Compared:
    """A method and its baseline, both arms; `measure` names what the curve shows, a `column` of each step."""

    method: str
    arm: str
    baseline: str
    measure: str = "success"
    column: str = "success"


def _toy(title: str, world: str, **options: Any) -> Arm:
    return Arm(title=title, config={"toy": world, "options": options})


_READ = {"bandit": 24, "frozen_lake": 48, "sokoban": 48}  # updates of a language model


def _games() -> dict[str, Arm]:
    """StarPO and StarPO-S on three games, by a table and by a language model, RLoop and plain RL on one."""
    found = {
        f"{preset}-{game}": _toy(f"{preset} on {game}", "games", game=game, preset=preset)
        for game in ("bandit", "frozen_lake", "sokoban")
        for preset in ("starpo", "starpo_s")
    }
    for game, updates in _READ.items():
        for preset in ("starpo", "starpo_s"):
            options = {"game": game, "preset": preset, "updates": updates, "reader": True}
            found[f"{preset}-{game}-read"] = _toy(f"{preset} on {game}, read", "games", **options)
    for name, loop in (("rloop", 12), ("plain_rl", 0)):
        found[name] = _toy(name, "games", game="sokoban", preset="grpo", updates=36, loop=loop)
    return found


# a verdict, one token long, counts as much as an episode
_MEAN = {"aggregation": "trajectory_mean"}
_SPARK = {"preset": "spark", "overrides": _MEAN}
_SPARK_ALONE = {"preset": "grpo", "overrides": {"outcome": "binary", **_MEAN}}
_HOUSEHOLD: dict[str, dict[str, Any]] = {
    "outcome": {"algorithm": {"preset": "grpo"}},
    "istar": {"algorithm": {"preset": "istar"}, "reward": {"kind": "istar"}},
    "spark": {"algorithm": _SPARK, "methods": {"spark": {"questions": 16}}},
    "spark_alone": {"algorithm": _SPARK_ALONE},
}
ARMS: dict[str, Arm] = {
    **_games(),
    "rloop-maze": _toy("RLoop in the maze", "maze", loop=8),
    "plain_rl-maze": _toy("plain RL in the maze", "maze", loop=0),
    "window": _toy("levels from a window", "levels", fixed=None),
    "fixed_0_1": _toy("levels 0 and 1", "levels", fixed=(0, 1)),
    "fixed_0_20": _toy("levels 0 to 20", "levels", fixed=(0, 20)),
    "tree": _toy("tree, AT-GRPO", "agents", strategy="at_grpo"),
    "whole": _toy("whole rollouts, GRPO", "agents", strategy="group"),
    "pa_rl": _toy("PA-RL", "steering", improves=True),
    "cloning": _toy("cloning alone", "steering", improves=False),
    "pa_rl-fetching": _toy("PA-RL, fetching", "fetching", critic=True),
    "distil-fetching": _toy("the same without a critic", "fetching", critic=False),
    "contrast": _toy("VLM-RL", "views", contrast=True),
    "success_only": _toy("success alone", "views", contrast=False),
    "istar-chain": _toy("iStar on chains", "chain", implicit=True, rate=0.5),
    "rloo-chain": _toy("RLOO on chains", "chain", implicit=False, rate=1.0),
    "rloo_fast-chain": _toy("RLOO, large steps", "chain", implicit=False, rate=4.0),
    "spark-letters": _toy("SPARK, letters", "letters", mode="shared"),
    "outcome-letters": _toy("outcome only, letters", "letters", mode="separate"),
    **{
        f"{name}-household": Arm(title=name, config=changes) for name, changes in _HOUSEHOLD.items()
    },
}
COMPARED = (
    *(
        Compared(f"StarPO-S, {game}", f"starpo_s-{game}", f"starpo-{game}")
        for game in ("bandit", "frozen_lake", "sokoban")
    ),
    *(
        Compared(
            f"StarPO-S, {game}, language model", f"starpo_s-{game}-read", f"starpo-{game}-read"
        )
        for game in _READ
    ),
    Compared("RLoop, sokoban", "rloop", "plain_rl"),
    Compared("RLoop, maze", "rloop-maze", "plain_rl-maze", "pass@32", "pass"),
    Compared("RLoop, maze", "rloop-maze", "plain_rl-maze", "share of goals forgotten", "forgotten"),
    Compared("RLVE, levels", "window", "fixed_0_1", "share of groups that are undecided"),
    Compared("RLVE, levels", "window", "fixed_0_20", "share of groups that are undecided"),
    Compared("AT-GRPO, plan_path", "tree", "whole"),
    Compared("PA-RL, steering", "pa_rl", "cloning", "reward of a turn"),
    Compared("PA-RL, fetching", "pa_rl-fetching", "distil-fetching"),
    Compared("VLM-RL, grid of images", "contrast", "success_only"),
    Compared("SPARK, letters", "spark-letters", "outcome-letters"),
    Compared("iStar, chains", "istar-chain", "rloo-chain"),
    Compared("iStar, chains", "istar-chain", "rloo_fast-chain"),
    Compared("iStar, household", "istar-household", "outcome-household"),
    Compared("SPARK, household", "spark-household", "spark_alone-household"),
    Compared(
        "SPARK, household", "spark-household", "spark_alone-household", "judge", "judge_balanced"
    ),
)


@dataclass(frozen=True, kw_only=True)
class MethodsSettings(Settings):
    """How much is played in the household; a toy's curve is as long as itself. The warm start's judge is not used."""

    warm: WarmStart = field(
        default_factory=lambda: WarmStart(
            judge_data=QUICK.warm.judge_data,
            judge=SupervisedSettings(learning_rate=3e-3, batch_rows=8, steps=1),
        )
    )

    def warm_start(self, seed: int) -> DemoSettings:
        """All arms begin alike: the policy has seen SPARK's questions, a few of them and with wrong verdicts among the answers."""
        start, few = super().warm_start(seed), self.warm.policy_data.count // 20
        warm = Joined(**vars(self.warm), chats_of="experiments.recycled_items", chats=few)
        return replace(start, warm_start=warm)

    def document(self, arm: Arm, seed: int, models: Mapping[str, str]) -> dict[str, Any]:
        """Return the run's configuration: the arm's preset as it stands, but no KL term in any."""
        document = super().document(arm, seed, models)
        given = arm.config["algorithm"]
        document["algorithm"] = {
            **given,
            "overrides": {"kl_beta": 0.0, **given.get("overrides", {})},
        }
        document["reward"] |= arm.config.get("reward", {})
        document["methods"] = arm.config.get("methods", {})
        document["models"]["reward"] |= {
            "path": models["policy"],
            "temperature": 1.0,
        }  # begins alike
        return document


_FULL = MethodsSettings()
STUDY = Study(
    name="methods",
    arms=ARMS,
    seeds=SEEDS,
    full=_FULL,
    quick=shortened(_FULL),
    run="experiments.methods_run:MethodsRun",
    report="experiments.methods_report",
)  # fmt: skip
