"""The experiment on planted votes: what the votes say, that a run records what its table reads, and what the table says."""

from __future__ import annotations

import json
import random
import signal
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from environments.household.episode import Episode
from environments.household.family import FAMILY
from environments.household.generator import generate
from environments.household.params import PlayOptions
from environments.household.planner import plan
from environments.household.wording import announce
from environments.household.world import World
from experiments.__main__ import main
from experiments.jobs import Job
from experiments.judging import PlantedJudge, distances, signs
from experiments.loop import play
from experiments.record import Models, Result
from experiments.settings import Asks
from experiments.study import file_of
from experiments.votes import ARMS, STUDY
from experiments.votes_report import best_rates, table
from services.reward.worker import scorer_of
from tests.unit.trainer.played import group_task, trajectory
from triforge.config import parse
from triforge.errors import ConfigError
from triforge.rollout.episode import judge_task
from triforge.types import Trajectory

_NO_MODEL = cast("Any", None)
_HARD = dict(STUDY.full.kinds[0])


def worlds() -> list[World]:
    return generate(count=3, seed=5, options=_HARD)


def solution(world: World) -> list[str]:
    return list(FAMILY.solution(world, PlayOptions(wording="terse")) or ())


# ---- what the votes say ----


def test_every_command_of_a_shortest_plan_is_progress() -> None:
    for world in worlds():
        left = distances(world, solution(world))
        assert left == [float(n) for n in range(len(left))][::-1]
        assert len(left) >= 8
        for asks in ("progress", "best", "difference"):
            assert set(signs(left, asks)) == {1}


def test_progress_is_what_the_planner_says_of_the_states_before_and_after() -> None:
    for seed, world in enumerate(worlds()):
        draw, actions, lengths = random.Random(seed), list[str](), list[int]()
        episode = Episode(world, PlayOptions(wording="terse"), announce(world))
        for _ in range(24):
            lengths.append(len(plan(world, state=episode.state) or ()))
            actions.append(draw.choice([*episode.commands(), "sing"]))
            episode.play(actions[-1])
        lengths.append(len(plan(world, state=episode.state) or ()))
        assert distances(world, actions) == [float(n) for n in lengths]
        votes = signs(distances(world, actions), "progress")
        assert votes == [1 if b < a else -1 for a, b in pairwise(lengths)]


def test_only_a_new_best_is_praised_twice_in_a_loop() -> None:
    loop = [3.0, 4.0, 3.0, 4.0, 3.0, 2.0]
    assert signs(loop, "progress") == [-1, 1, -1, 1, 1]
    assert signs(loop, "best") == [-1, -1, -1, -1, 1]
    assert signs([3.0, 3.0, 4.0, 3.0], "difference") == [0, -1, 1]


@pytest.mark.parametrize(("right", "low", "high"), [(1.0, 1, 1), (0.75, 0.7, 0.8), (0.0, 0, 0)])
async def test_a_planted_judge_is_right_as_often_as_it_says(
    right: float, low: float, high: float
) -> None:
    group = group_task(votes=3)
    played = trajectory(group, 0, outcome=-1, lengths=[1] * 200, labels=[1, -1] * 100)
    judge = PlantedJudge("sensible", right)
    votes = await judge(played, judge_task(group, 0), _NO_MODEL)
    hits = [v.value == played.steps[s.step].label for s in votes.steps for v in s.votes]
    assert low <= sum(hits) / len(hits) <= high
    assert votes == await judge(played, judge_task(group, 0), _NO_MODEL)


@pytest.mark.parametrize(
    ("asks", "votes"),
    [
        ("sensible", "-++ +++ -+- +-- --- +-+ --- +-+"), ("progress", "-++ +++ +-+ +-- --- -+- +++ +-+"),
        ("best", "-++ +++ +-+ +-- --- -+- --- +-+"), ("difference", "-++ +++ +-+ -0- --- -00 ++- ++-"),
    ],
)  # fmt: skip
async def test_planted_votes_are_those_of_the_runs_on_file(asks: Asks, votes: str) -> None:
    world, group = worlds()[0], group_task(votes=3)
    shortest = solution(world)
    assert shortest[:4] == ["go diningtable", "take egg", "go fridge", "open fridge"]
    actions = [*shortest[:3], "sing", shortest[0], *shortest[1:4]]
    labels = [1, 1, -1, None, -1, 1, -1, 1]
    played = trajectory(group, 0, outcome=-1, lengths=[1] * len(actions), labels=labels)
    judge = PlantedJudge(asks, 0.7, lambda _: (world, {}))
    found = await judge(with_actions(played, actions), judge_task(group, 0), _NO_MODEL)
    assert " ".join("".join("-0+"[v.value + 1] for v in s.votes) for s in found.steps) == votes


def test_a_path_names_a_planted_judge() -> None:
    assert scorer_of("experiments.judging:best_75") == PlantedJudge("best", 0.75)
    with pytest.raises(ConfigError, match=r"reward\.kind"):
        scorer_of("experiments.judging:worst_75")


def with_actions(played: Trajectory, actions: list[str]) -> Trajectory:
    steps = [s.model_copy(update={"action": a}) for s, a in zip(played.steps, actions, strict=True)]
    return played.model_copy(update={"steps": tuple(steps)})


def test_new_bests_are_the_labels_of_the_environment() -> None:
    world = worlds()[1]
    options = PlayOptions(wording="terse", labels="progress")
    draw, actions, labels = random.Random(3), list[str](), list[int | None]()
    episode = Episode(world, options, announce(world))
    for _ in range(24):
        actions.append(draw.choice([*episode.commands(), "sing"]))
        labels.append(episode.play(actions[-1]).label)
    played = with_actions(trajectory(group_task(), 0, outcome=-1, lengths=[1] * 24), actions)
    judge = PlantedJudge("best", world=lambda _: (world, {}))
    assert judge.truth(played) == labels
    assert set(labels) == {1, -1}


# ---- runs and their table ----


def test_a_run_records_what_its_table_reads(models: Models) -> None:
    lines = list[dict[str, Any]]()
    name = "within_8-progress_75@5e-4"
    result = play(name, ARMS[name], 7, STUDY.quick, models, tell=lambda x: lines.append(dict(x)))
    assert [e["step"] for e in result.evaluations] == [0.0, 1.0]
    assert set(result.evaluations[0]) == {"step", "sampled", "greedy"}
    assert [next(iter(line)) for line in lines] == ["evaluations", "steps", "evaluations", "arm"]
    assert result.steps[0]["all_same"] == 1.0  # an untrained model never wins
    assert name in table({(name, 7): json.loads(json.dumps(asdict(result)))})


@pytest.mark.parametrize("name", [name for name in ARMS if name.endswith("@5e-4")])
def test_the_document_of_each_arm_is_one_that_a_run_takes(name: str) -> None:
    config = parse(
        STUDY.full.document(ARMS[name], 1, {"policy": "a", "reward": "b", "rewriter": ""})
    )
    assert set(STUDY.smoke) <= set(ARMS)
    algorithm = config.algorithm.resolved
    assert (config.votes > 0) == (ARMS[name].planted is not None) == algorithm.use_votes
    assert (algorithm.kl_beta, algorithm.train_reward_model) == (0.0, False)
    assert config.trainer.policy.learning_rate == 5e-4


def test_runs_on_file_are_shown_and_not_played_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    path = file_of(tmp_path, STUDY, STUDY.quick, Job("outcome@5e-4", 7))
    path.parent.mkdir()
    lines = [
        {"evaluations": {"step": 0.0, "sampled": 0.1, "greedy": 0.1}},
        {"steps": {"all_same": 1.0}},
        {"evaluations": {"step": 1.0, "sampled": 0.25, "greedy": 0.5}},
        {"arm": "outcome@5e-4", "seed": 7},
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    asked = ["votes", "--quick", "--seeds", "7", "--state", str(tmp_path)]
    try:
        assert main([*asked, "--arms", "outcome@*"]) == 0
        assert main([*asked, "--arms", "unknown"]) == 2
    finally:
        signal.signal(signal.SIGTERM, before)
    text = capsys.readouterr().out
    assert "all runs are on file" in text
    assert "| `outcome@5e-4` | 1 | 0.10 0.25 | 0.250 ± ? |" in text
    assert "given ['unknown'], expected names or patterns of" in text
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_the_table_compares_each_arm_with_outcome_only_at_the_rate_that_suits_it() -> None:
    results = {}
    ends = {"outcome@5e-4": 0.2, "outcome@1e-3": 0.25, "within_8-progress_100@5e-4": 0.4}
    for name, end in ends.items():
        for seed in (1, 2, 3):
            result = Result(name, seed)
            result.evaluations = [
                {"step": 0.0, "sampled": 0.1, "greedy": 0.1},
                {"step": 4.0, "sampled": end + 0.01 * seed, "greedy": end},
            ]
            result.steps = [{"policy/moved_k3": 0.002, "policy/entropy": 0.5, "all_same": 0.8}, {}]
            results[name, seed] = asdict(result)
    assert best_rates(results)["outcome"] == "outcome@1e-3"
    text = table(results)
    assert "differences paired by seed with `outcome@1e-3`" in text
    assert "| 0.10 0.42 | 0.420 ± 0.025 | +0.150 ± 0.000 | 0.400 ± 0.000 | +0.150 ± 0.000 |" in text
    assert "| 1.000 ± 0.000 | 0.50 -> 0.50 |" in text
    assert "nothing is on file" in table({})
