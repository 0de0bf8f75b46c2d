"""The learner's jobs other than the policy gradient: cross-entropy, distillation, pairs; and the rows of each."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from services.trainer.credit.options import Limits, SampleOptions
from services.trainer.credit.samples import Samples, build_samples
from services.trainer.learner.learner import Learner
from tests.unit.trainer.conftest import MakeBatch, sampled_rows
from tests.unit.trainer.played import group_task, judged, task_of, trajectory
from triforge.algorithms.algorithm import resolve
from triforge.errors import ConfigError
from triforge.types import JudgedGroup, TrainRow, TrajectoryGroup

NO_KL = {"kl_beta": 0.0}


@pytest.fixture(scope="module")
def few(model_folder: Path) -> list[TrainRow]:
    return sampled_rows(model_folder, 6, seed=3)


def trained(
    folder: Path, make_batch: MakeBatch, rows: list[TrainRow], **options: Any
) -> tuple[dict[str, float], torch.Tensor]:
    """Metrics and gradient of one update."""
    learner = Learner.fresh(folder)
    batch = make_batch(num_rows=len(rows), updates_per_step=1, grad_clip=1e9, **options)
    report = learner.train(batch, rows)
    moments = sorted(
        (n, t) for n, t in learner.saved().tensors["optimizer"].items() if "exp_avg" in n
    )
    first = [t.flatten() * 10 for n, t in moments if n.endswith("exp_avg")]
    return report.metrics, torch.cat(first)


def plain(folder: Path, rows: list[TrainRow], loss: Any) -> tuple[float, torch.Tensor]:
    """Loss and gradient of a function of each row's log-probabilities, without anything of the learner."""
    model = Learner.fresh(folder).model
    scores = []
    for row in rows:
        logits = model.module(torch.tensor([row.ids])).logits[0].log_softmax(-1)
        places = [p for p, w in enumerate(row.weights) if w]
        scores.append(torch.stack([logits[p - 1, row.ids[p]] for p in places]))
    total = loss(scores)
    total.backward()
    gradient = torch.cat([p.grad.flatten() for _, p in sorted(model.parameters().items())])
    return float(total.detach()), gradient


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return float((one - other).norm() / other.norm()) < 1e-4


@pytest.mark.parametrize(
    ("job", "factors"), [("ce", [1.0] * 6), ("distil", [0.0, 0.5, 1.5, 2.0, 1.0, 1.0])]
)
def test_imitation_is_the_negative_log_likelihood_that_distillation_alone_weighs(
    model_folder: Path, make_batch: MakeBatch, few: list[TrainRow], job: str, factors: list[float]
):
    """Cross-entropy reads no advantages; distillation weighs each candidate with its own."""
    rows = [
        row.model_copy(update={"advantages": tuple(s if w else 0.0 for w in row.weights)})
        for row, s in zip(few, [0.0, 0.5, 1.5, 2.0, 1.0, 1.0], strict=True)
    ]
    metrics, gradient = trained(model_folder, make_batch, rows, job=job, **NO_KL)
    loss, wanted = plain(
        model_folder,
        few,
        lambda s: -sum(a * x.mean() for a, x in zip(factors, s, strict=True)) / len(s),
    )
    assert metrics["loss"] == pytest.approx(loss, rel=1e-4)
    assert close(gradient, wanted)


def paired(rows: list[TrainRow]) -> list[TrainRow]:
    """Two tasks; the first has a success of two rows and two failures, the second one of each."""
    keys = ["a/0", "a/1", "b/0", "c/0", "d/0", "e/0"]
    tasks, sides = ["t", "t", "t", "t", "u", "u"], [1, 1, -1, -1, 1, -1]
    return [
        row.model_copy(
            update={
                "key": key,
                "task_id": task,
                "advantages": tuple(float(side) if w else 0.0 for w in row.weights),
            }
        )
        for row, key, task, side in zip(rows, keys, tasks, sides, strict=True)
    ]


@pytest.mark.parametrize("budget", [1, 8192])
def test_the_gradient_of_pairs_is_that_of_the_joint_loss_however_rows_share_a_pass(
    model_folder: Path, make_batch: MakeBatch, few: list[TrainRow], budget: int
):
    beta = 0.7

    def joint(scores: list[torch.Tensor]) -> torch.Tensor:
        reference = [x.detach() + 0.0 for x in scores]
        margin = [beta * (x - r).sum() for x, r in zip(scores, reference, strict=True)]
        first = margin[0] + margin[1]
        pairs = [first - margin[2], first - margin[3]]
        softplus = torch.nn.functional.softplus
        return (sum(softplus(-p) for p in pairs) / 2 + softplus(-(margin[4] - margin[5]))) / 2

    metrics, gradient = trained(
        model_folder, make_batch, paired(few), job="dpo_pair", dpo_beta=beta, token_budget=budget, **NO_KL
    )  # fmt: skip
    loss, wanted = plain(model_folder, few, joint)
    assert metrics["loss"] == pytest.approx(loss, rel=1e-6) == pytest.approx(math.log(2.0))
    assert (metrics["pairs"], metrics["kl_k3"]) == (3, 0.0)
    assert close(gradient, wanted)


def test_training_on_pairs_puts_the_better_trajectories_in_front(
    model_folder: Path, make_batch: MakeBatch, few: list[TrainRow]
):
    learner = Learner.fresh(model_folder)
    options: dict[str, Any] = {"num_rows": 6, "job": "dpo_pair", "dpo_beta": 0.5, **NO_KL}
    for step in range(1, 9):
        batch = make_batch(step=step, updates_per_step=2, learning_rate=3e-3, **options)
        metrics = learner.train(batch, paired(few)).metrics
    assert metrics["loss"] < math.log(2.0) - 0.1
    assert metrics["pairs_right"] == 1.0


# ---- which rows a job is given ----


def keep(groups: list[JudgedGroup], **overrides: Any) -> Samples:
    everything = Limits(max_tokens=1000, max_rows=0)
    return build_samples(
        groups, SampleOptions(algorithm=resolve("grpo", overrides), players={"policy": (1, everything)},         judging={"reward": (1, everything)}, seed=7))  # fmt: skip


def played(group_id: str, outcomes: list[int | None]) -> JudgedGroup:
    return judged(group_task(group_id, rollouts=len(outcomes)), outcomes, [[[]]] * len(outcomes))


def shares(samples: Samples) -> list[float]:
    return [
        a
        for row in samples.rows["policy"]
        for a, w in zip(row.advantages, row.weights, strict=True)
        if w
    ]


def test_fine_tuning_imitates_the_successes_alone_even_where_nothing_failed():
    samples = keep([played("g", [1, -1, None]), played("h", [1, 1])], job="ce")
    assert shares(samples) == [1.0, 1.0, 1.0]
    assert samples.reasons == {"trained": 3, "not a success": 1, "no outcome": 1}


def test_distillation_imitates_the_better_rollouts_more():
    samples = keep([played("g", [1, -1])], job="distil", imitation_temperature=2.0)
    even = 1 / (1 + math.exp(-1))
    assert shares(samples) == pytest.approx([2 * even, 2 * (1 - even)])
    best = keep([played("g", [1, -1])], job="distil", imitation_temperature=0.0)
    assert shares(best) == [2.0]
    assert best.reasons == {"trained": 1, "zero advantage": 1}


def test_pairs_need_a_success_and_a_failure_of_one_task():
    options: dict[str, Any] = {"job": "dpo_pair", "kl_beta": 0.0, "aggregation": "token_mean"}
    samples = keep([played("g", [1, -1, -1]), played("h", [1, 1])], **options)
    assert shares(samples) == [1.0, -1.0, -1.0]
    assert samples.reasons == {"trained": 3, "no pair": 2}


def halves(group_id: str, outcomes: list[int | None]) -> JudgedGroup:
    """Trajectories of two rows each."""
    group = group_task(group_id, task_id=group_id, rollouts=len(outcomes))
    return JudgedGroup(
        played=TrajectoryGroup(
            group=group, task=task_of(group), trajectories=tuple(
                trajectory(group, n, outcome=outcome, lengths=[2, 3], segments=[0, 1])
                for n, outcome in enumerate(outcomes)
            ),
        ),
        votes=(None,) * len(outcomes),
    )  # fmt: skip


def cut(group: JudgedGroup, index: int) -> JudgedGroup:
    """The same with the last response of a trajectory broken off."""
    played = group.played
    trajectories = list(played.trajectories)
    first, last = trajectories[index].steps
    steps = (first, last.model_copy(update={"finish": "length"}))
    trajectories[index] = trajectories[index].model_copy(update={"steps": steps})
    update = {"played": played.model_copy(update={"trajectories": tuple(trajectories)})}
    return group.model_copy(update=update)


def test_a_trajectory_that_is_not_whole_is_left_out_of_the_pairs_and_so_are_those_it_leaves_alone():
    options: dict[str, Any] = {"job": "dpo_pair", "kl_beta": 0.0, "aggregation": "token_mean"}
    groups = [cut(halves("g", [1, -1, -1]), 1), cut(halves("h", [1, -1]), 0)]
    samples = keep(groups, truncated="mask", **options)
    assert {row.key for row in samples.rows["policy"]} == {"g-00/0", "g-00/1", "g-02/0", "g-02/1"}
    assert samples.reasons == {
        "trained": 4, "truncated response": 2, "trajectory is not whole": 2, "no pair": 2,
    }  # fmt: skip
    assert len(keep(groups, truncated="keep", **options).rows["policy"]) == 10


@pytest.mark.parametrize("service", [3, 4, 7])
def test_what_a_limit_of_rows_leaves_to_pairs_are_whole_trajectories_of_both_sides(service: int):
    groups = [halves(name, [1, -1]) for name in "ghi"]
    options: dict[str, Any] = {"job": "dpo_pair", "kl_beta": 0.0, "aggregation": "token_mean"}
    found = Counter[int]()
    for seed in range(20):
        samples = build_samples(
            groups, SampleOptions(algorithm=resolve("grpo", options), players={"policy": (1, Limits(max_tokens=99, max_rows=service))}, seed=seed,
            judging={"reward": (1, Limits(max_tokens=9, max_rows=0))}, ))  # fmt: skip
        keys = Counter(row.key.partition("/")[0] for row in samples.rows["policy"])
        assert len(samples.rows["policy"]) <= service
        assert set(keys.values()) <= {2}
        sides = Counter(row.task_id for row in samples.rows["policy"])
        assert set(sides.values()) <= {4}
        assert samples.reasons["over max_rows"] + samples.reasons["no pair"] == 12 - sum(
            keys.values()
        )
        found[len(keys)] += 1
    assert set(found) == ({0} if service < 4 else {0, 2})


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"job": "ce", "estimator": "branch"}, "no advantage is estimated"),
        ({"job": "ce", "loss": "gspo"}, "loss: given .gspo., allowed only with job"),
        ({"job": "distil", "off_policy": "tis"}, "off_policy: given"),
        ({"job": "dpo_pair"}, "kl_beta and entropy_bonus: given"),
        ({"job": "dpo_pair", "kl_beta": 0}, "aggregation: given"),
        ({"imitation_temperature": 2}, "allowed only with job = 'distil'"),
        (
            {"job": "distil", "kl_weighted": True},
            "kl_weighted: given True, allowed only with job = 'pg'",
        ),
        ({"job": "ce", "dpo_beta": 0.5}, "allowed only with job = 'dpo_pair'"),
        ({"job": "rft"}, "job: given 'rft', allowed one of"),
    ],
)
def test_jobs_that_cannot_be_are_refused_with_the_reason(overrides: dict[str, Any], sentence: str):
    with pytest.raises(ConfigError, match=sentence):
        resolve("grpo", overrides)


def test_what_is_imitated_needs_no_correction_and_the_judge_never_imitates():
    algorithm = resolve("grpo", {"job": "ce"})
    assert algorithm.correction(2).mode == "none"
    judge = algorithm.of_reward_model()
    assert (judge.correction(2).mode, judge.job) == ("tis", "pg")
