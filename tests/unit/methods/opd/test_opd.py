"""On-policy distillation: what the teacher says of each token, what becomes of it in the rows, and which teachers are refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from demo.models.tiny_models import TinyShape, build_tiny_model
from methods.opd.loop import Opd, demand_one_tokenizer
from methods.opd.options import OpdOptions
from services.reward.worker import scorer_of
from services.trainer.credit.options import SampleOptions
from services.trainer.credit.samples import Samples, build_samples
from services.trainer.loop.hooks import MethodContext
from tests.unit.planning.test_plan import QWEN_7B, SMALL
from tests.unit.trainer.played import LOGPROB, group_task, judged
from triforge.config import merge, parse
from triforge.errors import ConfigError
from triforge.planning.cards import find_cards
from triforge.planning.plan import make_plan, served
from triforge.planning.shapes import ModelShape
from triforge.rollout.episode import judge_task
from triforge.types import GenerateReply, GenerateRequest, JudgedGroup

ALONE: dict[str, Any] = {
    "reward": {"kind": "opd"},
    "env_adapter": {"rollouts": 2},
    "algorithm": {"preset": "opd"},
}
MIXED = merge(ALONE, {"algorithm": {"overrides": {"use_outcome": True, "lam": 0.5}}})
HALF: dict[int, float] = {1: 0.25, 2: -1.0, 3: 0.0}  # d of the tokens 1, 2, 3 of a response


class Teacher:
    """Finds token t by d(t) likelier than the policy did; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[GenerateRequest] = []

    async def __call__(self, requests: Sequence[GenerateRequest]) -> list[GenerateReply]:
        self.asked += requests
        return [
            GenerateReply(
                prompt_ids=r.prefix_ids, outputs=(), prompt_version=3,
                prompt_logprobs=tuple(LOGPROB + HALF.get(i, 0.0) for i in r.prefix_ids[1:]),
            )
            for r in requests
        ]  # fmt: skip


async def scored(document: dict[str, Any], outcomes: tuple[int, int]) -> JudgedGroup:
    """Two rollouts of two steps with two tokens each."""
    task = group_task("g").model_copy(update={"reward": parse(document).reward})
    group = judged(task, outcomes, [[[], []], [[], []]], length=2)
    votes = [
        await scorer_of("opd")(one, judge_task(task, n), Teacher())
        for n, one in enumerate(group.played.trajectories)
    ]
    return group.model_copy(update={"votes": tuple(votes)})


async def rows_of(
    document: dict[str, Any], outcomes: tuple[int, int], folder: Path
) -> tuple[Samples, dict[str, float]]:
    model = build_tiny_model(folder / "model", ["a"], shape=TinyShape(hidden=16, layers=1, heads=2))
    paths = {role: {"path": str(model)} for role in ("policy", "reward")}
    config, groups = parse(merge(document, {"models": paths})), [await scored(document, outcomes)]
    samples = build_samples(groups, SampleOptions.of(config, 1, {"policy": 1, "reward": 3}, 0.0))
    context = MethodContext(
        name="opd", parts=cast("Any", None), run_id="run", config=config
    )  # it needs no part
    hooks = Opd(context, OpdOptions())
    assert await hooks.more_samples(1, groups, samples) == []
    return samples, await hooks.measure(1, groups, samples)


async def test_the_teacher_reads_whole_rows_and_scores_each_token_of_the_responses() -> None:
    group, teacher = await scored(ALONE, (1, -1)), Teacher()
    played = group.played.trajectories[0]
    votes = await scorer_of("opd")(played, judge_task(group.played.group, 0), teacher)
    assert [r.prefix_ids for r in teacher.asked] == [s.ids for s in played.segments]
    assert all(r.prompt_logprobs for r in teacher.asked)
    assert [step.extra["opd"] for step in votes.steps] == [[0.25, -1.0]] * 2
    assert [(step.score, step.score_version, step.votes) for step in votes.steps] == [
        (-0.375, 3, ())
    ] * 2


@pytest.mark.parametrize("outcomes", [(1, -1), (-1, -1)])
async def test_alone_each_token_has_its_log_ratio_as_advantage_whatever_the_outcomes(
    outcomes: tuple[int, int], tmp_path: Path
) -> None:
    samples, measures = await rows_of(ALONE, outcomes, tmp_path)
    assert [r.advantages for r in samples.rows["policy"]] == [(0.0, 0.0, 0.25, -1.0) * 2] * 2
    assert [record["advantage"] for record in samples.records] == [-0.375] * 4
    assert samples.reasons == {"trained": 4}
    assert measures == {"opd/reverse_kl": 0.375}


async def test_mixed_it_is_added_to_the_advantage_by_outcomes(tmp_path: Path) -> None:
    samples, _ = await rows_of(MIXED, (1, -1), tmp_path)
    for row, outcome in zip(samples.rows["policy"], (1.0, -1.0), strict=True):
        tokens = (outcome + 0.125, outcome - 0.5)
        assert row.advantages == pytest.approx((0.0, 0.0, *tokens) * 2, abs=1e-5)
    alike, _ = await rows_of(MIXED, (-1, -1), tmp_path / "alike")
    assert alike.rows["policy"][0].advantages == (0.0, 0.0, 0.125, -0.5) * 2


def test_a_teacher_of_another_size_is_taken_and_one_with_other_tokens_refused(
    tmp_path: Path,
) -> None:
    small, large = (
        str(build_tiny_model(tmp_path / str(hidden), ["a", "b"], shape=TinyShape(hidden=hidden)))
        for hidden in (32, 64)
    )
    demand_one_tokenizer(small, large)
    for words in (["b", "a"], ["a", "b", "c"], ["a"]):
        other = build_tiny_model(tmp_path / "-".join(words), words, shape=TinyShape(hidden=32))
        with pytest.raises(ConfigError, match=r"models.reward.path: given .* tokenizer differs"):
            demand_one_tokenizer(small, str(other))


def test_a_teacher_larger_than_what_a_learner_could_hold_has_engines_and_no_learner() -> None:
    paths = {role: {"path": role} for role in ("policy", "reward")}
    config = parse(merge(ALONE, {"models": paths, "adaptation": {"controller": "none"}}))
    shapes = {"policy": SMALL, "reward": QWEN_7B}
    plan = make_plan(
        config, {role: ModelShape.of_config(shape, "config.json") for role, shape in shapes.items()},
        find_cards("2x80GB"), served(config),
    )  # fmt: skip
    assert {engine.role for engine in plan.engines} == {"policy", "reward"}
    assert [learner.role for learner in plan.learners] == ["policy"]


@pytest.mark.parametrize(
    ("over", "problem"),
    [
        ({"reward": {"kind": "votes"}}, "reward.kind: given 'votes'"),
        ({"algorithm": {"preset": "grpo"}}, "reward.kind: given 'opd' .*'group'"),
        ({"algorithm": {"overrides": {"loss": "gspo"}}}, "overrides.loss: given 'gspo'"),
        (
            {"algorithm": {"overrides": {"use_votes": False, "use_outcome": True}}},
            "overrides.use_votes: given False",
        ),
        ({"algorithm": {"overrides": {"whiten": True}}}, "overrides.whiten: given True"),
        ({"algorithm": {"overrides": {"job": "ce"}}}, "job"),
        ({"models": {"policy": {"temperature": 0.8}}}, "models.policy.temperature = 0.8"),
    ],
)
def test_a_combination_is_refused(over: dict[str, Any], problem: str) -> None:
    parse(ALONE)
    with pytest.raises(ConfigError, match=problem):
        parse(merge(ALONE, over))
