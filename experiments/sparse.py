"""Sparse outcomes: what votes, a taught judge and rewrites add where almost no rollout succeeds; experiments/results/sparse.md is the plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from demo.models.household_judge import household_judge, version
from demo.settings import HORIZON, LAPSED, SPARSE, DemoSettings, Lapse, WarmStart, sparse
from demo.warm_start import tiny_models
from experiments.comparison import JUDGED, Comparison
from experiments.report import Page, Results, at_end, by_seed
from experiments.settings import QUICK, Arm, Kind, Settings
from experiments.study import Study
from triforge.config.document import merge

SEEDS = tuple(range(51, 63))
TUNING_SEEDS = tuple(range(961, 971))  # none of the reported ones
MAIN = ("O", "O_index", "P", "R", "F", "E", "N", "O_adapted", "planted", "planted_90")
BEST = "O*"
"""The arm without votes whose mean over the seeds is higher."""
PLANNED = (("R", BEST), ("R", "P"), ("P", BEST), ("E", "R"))
"""The first of each pair is to be above the second."""

STUCK = 0.02
"""A seed is left out if its policy succeeds less often than this with votes that are always right: it never does what they could praise."""

_ALONE = {"use_votes": False, "train_reward_model": False}
_VOTES = {"estimator": "within", "lam": 0.4, "reward_band": "none"}
_FROZEN = _VOTES | {"train_reward_model": False}
_TAUGHT = _VOTES | {"judge_target": "label"}
_AUDIT: dict[str, Any] = {"methods": {"audit": {}}}
_GUARDED: dict[str, Any] = {"methods": {"audit": {"anchors": 1.0}}}
"""Labels measure the judge's versions and teach none."""
_ORACLE: dict[str, Any] = {"reward": {"kind": "oracle", "shows": []}}
_REWRITES = {
    "adaptation": {
        "controller": "llm_rewrite", "max_pending": 2, "max_rollouts": 16, "candidates": 1, "pairs_on_top": False,
    }
}  # fmt: skip


def _arm(title: str, options: Mapping[str, Any], *sections: Mapping[str, Any]) -> Arm:
    """Return an arm by its options of the algorithm and the sections that it changes."""
    changed: dict[str, Any] = {}
    for section in sections:
        changed = merge(changed, section)
    rewrites = "adaptation" in changed
    parts = {"options": dict(options), "sections": changed, "rewriter": "sub_goals" * rewrites}
    return Arm(title=title, config=parts)


ARMS = {
    "O": _arm("outcome only, whole trajectories compared", {**_ALONE, "estimator": "group"}),
    "O_index": _arm("outcome only, steps of equal index compared", _ALONE),
    "P": _arm("votes of a judge that was taught by runs of other policies, frozen", _FROZEN),
    "R": _arm("votes of the same judge, taught each step by labels of a tenth of the rollouts", _TAUGHT, _AUDIT),
    "F": _arm("votes of the same judge, taught each step without labels", _VOTES | {"judge_target": "monte_carlo"}, _GUARDED),
    "E": _arm("R, tasks adapted", _TAUGHT, _AUDIT, _REWRITES),
    "N": _arm("E with unchanged candidates", _TAUGHT, _AUDIT, _REWRITES, {"adaptation": {"null_control": 1.0}}),
    "O_adapted": _arm("O, tasks adapted", {**_ALONE, "estimator": "group"}, _REWRITES),
    "planted": _arm("votes that are always right", _FROZEN, _ORACLE),
    "planted_90": _arm(
        "votes right with .9, errors that repeat", _FROZEN, _ORACLE, {"reward": {"accuracy": 0.9, "errors": "repeat"}}
    ),
    **{f"R_{percent}": _arm(f"R with labels of {percent} % of the rollouts", _TAUGHT, _AUDIT, {"reward": {"audit_share": percent / 100}}) for percent in (1, 3, 30)},
    "R_rare": _arm("R, the judge taught every tenth step", _TAUGHT, {"methods": {"audit": {"train_every": 10}}}),
    "R_12": _arm("R, 12 updates of the judge a step", _TAUGHT, {"methods": {"audit": {"updates": 12}}}),
    "R_kept": _arm("R, labels of all earlier steps trained on again", _TAUGHT, {"methods": {"audit": {"keep_steps": 20}}}),
    "R_slow": _arm("R, the judge's learning rate a quarter", _TAUGHT, _AUDIT, {"trainer": {"reward": {"learning_rate": 5e-5}}}),
    "R_unguarded": _arm("R, every version of the judge goes live", _TAUGHT, {"methods": {"audit": {"error": 0.0}}}),
    "R_competence": _arm("R, votes weighed by the judge's competence on anchors", _TAUGHT, {"methods": {"audit": {"by_competence": True}}}),
    "R_anneal": _arm("R, votes lose their weight from step 10 to 20", _TAUGHT | {"vote_steps": [0, 0, 10, 20]}, _AUDIT),
    "E_more": _arm("E, up to four rewrites measured at a time, on top of the groups", _TAUGHT, _AUDIT, _REWRITES, {"adaptation": {"max_pending": 4, "pairs_on_top": True}}),
    "E_short": _arm("E, a rewrite measured by at most 8 rollouts", _TAUGHT, _AUDIT, _REWRITES, {"adaptation": {"max_rollouts": 8}}),
    "E_low": _arm("E, the band begins at .05", _TAUGHT | {"alpha_low": 0.05}, _AUDIT, _REWRITES),
    "E_light": _arm("E, one rewrite measured at a time, 12 updates of the judge a step", _TAUGHT, {"methods": {"audit": {"updates": 12}}}, _REWRITES, {"adaptation": {"max_pending": 1}}),
    **{f"F_{target}": _arm(f"F with the target {target}", _VOTES | {"judge_target": target}, _GUARDED) for target in ("published", "centred")},
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SparseSettings(Settings):
    """How much is played: tasks that need a treatment, and a policy that was trained to forget it."""

    options: ClassVar[Mapping[str, Any]] = sparse(0).options

    steps: int = 20
    tasks: tuple[Kind, ...] = (Kind("", SPARSE, train=64, heldout=128),)
    late_evals: tuple[int, ...] = (15, 10, 5, 0)
    warm: WarmStart = LAPSED
    judge: str = field(default_factory=version)
    """The judge that all seeds begin with, by the name of its weights."""

    def pool(self) -> tuple[Kind, ...]:
        """Return the one kind of tasks."""
        return self.tasks

    def warm_start(self, seed: int) -> DemoSettings:
        """Demonstrations as long as these tasks ask for; the judge's labels say whether the shortest plan got shorter than ever."""
        return sparse(seed, self.warm)

    def models(self, seed: int, tell: Callable[[str], None]) -> tuple[Path, Path]:
        """Return the policy of the seed, and the judge, which is the same for all seeds."""
        return tiny_models(self.warm_start(seed), tell)[0], household_judge()

    def short(self) -> SparseSettings:
        """As little as shows that everything runs."""
        few = tuple(replace(kind, train=8, heldout=4) for kind in self.tasks)
        judged = replace(QUICK.judge_data, reference=True)
        warm = replace(
            QUICK,
            judge=None,
            judge_data=judged,
            lapse=Lapse(data=QUICK.policy_data, job=QUICK.policy),
        )
        return replace(
            self,
            steps=2,
            groups=4,
            rollouts=2,
            late_evals=(0,),
            warm=warm,
            tasks=few,
        )

    def document(self, arm: Arm, seed: int, models: Mapping[str, str]) -> dict[str, Any]:
        """Return the run's configuration: what all arms share, then the arm's options and sections."""
        document = self.shared_document(seed, models)
        document["run"]["eval_greedy"] = False
        document["env_adapter"]["max_steps"] = HORIZON
        document["reward"] |= {"votes": 1, "shows": ["reference"]}
        document["trainer"]["reward"]["learning_rate"] = 2e-4
        document["algorithm"]["overrides"] = {
            "std_floor": 0.0,
            "kl_beta": 0.0,
            **arm.config["options"],
        }
        if "audit" in arm.config["sections"].get("methods", {}):  # the default of the reported runs
            document["methods"] = {"audit": {"updates": 36}}
        return merge(document, arm.config["sections"])


@dataclass(frozen=True, kw_only=True)
class SparseComparison(Comparison):
    """The page; the better arm without votes stands for both in the planned tests, and seeds that learn from nothing are left out."""

    def write(self, results: Results, steps: int, page: Page) -> str:
        """Return the whole page."""
        value = at_end(next(iter(self.measures)))
        planted = by_seed(results, "planted", value)
        stuck = sorted(seed for seed, success in planted.items() if success < STUCK)
        results = {job: found for job, found in results.items() if job[1] not in stuck}
        means = {a: by_seed(results, a, value) for a in ("O", "O_index")}
        best = max(means, key=lambda a: sum(means[a].values()) / max(1, len(means[a])))
        alias = {(BEST, seed): found for (arm, seed), found in results.items() if arm == best}
        text = super().write({**results, **alias}, steps, page)
        left_out = f" Seeds left out by the plan's rule: {', '.join(map(str, stuck)) or 'none'}."
        return f"{text}\n`{BEST}` is `{best}`.{left_out}\n"


_FULL = SparseSettings()
STUDY = Study(
    name="sparse",
    arms=ARMS,
    seeds=SEEDS,
    further={name: () for name in ARMS if name not in MAIN},
    full=_FULL,
    quick=_FULL.short(),
    compared=SparseComparison(
        name="sparse",
        title="Sparse outcomes: votes, a taught judge, adapted tasks",
        known="what each part of the loop adds here where almost no rollout succeeds",
        arms=ARMS,
        main=MAIN,
        planned=PLANNED,
        pairs=(("F", "P"), ("F", BEST), ("E", "N"), ("O_adapted", "O"), ("planted", BEST), ("planted_90", BEST)),
        tuned=TUNING_SEEDS,
        measures={"sampled": "held-out success, mean of the evaluations after steps 5, 10, 15 and 20"},
        played=JUDGED,
    ),
)  # fmt: skip
