"""Table 1 on two cores: what its arms are, what its report says, and that they go round."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from demo.warm_start import played_with
from environments.household.params import world_of
from experiments.jobs import Job
from experiments.loop import play
from experiments.record import Models, Result
from experiments.report import Page
from experiments.rewriters import REWRITERS
from experiments.study import judges_of
from experiments.table1 import (
    ARMS,
    BASELINES,
    MAIN,
    SEEDS,
    STUDY,
    TUNING_SEEDS,
    Table1Settings,
)
from experiments.table1_report import MEASURES, draw, write
from experiments.vote_quality import GATE
from triforge.config import parse
from triforge.environments.registry import family
from triforge.errors import ConfigError
from triforge.rollout.choices import one_of
from triforge.types import ChatMessage, GenerateRequest, Sampling

assert isinstance(STUDY.quick, Table1Settings)
MODELS = {"policy": "p", "reward": "j", "rewriter": "r"}
FULL = Table1Settings()


def document(name: str) -> dict[str, Any]:
    return FULL.document(ARMS[name], 11, MODELS)


def test_each_main_arm_adds_one_part_to_the_one_before() -> None:
    parsed = {name: parse(document(name)) for name in ARMS}
    o, p, r, e, n = (parsed[name] for name in MAIN)
    assert not o.algorithm.resolved.needs_votes
    assert p.algorithm.resolved.use_votes
    assert [a.algorithm.resolved.train_reward_model for a in (o, p, r, e, n)] == [
        False, False, True, True, True
    ]  # fmt: skip
    assert [a.adaptation.chosen.rewrites for a in (o, p, r, e, n)] == [
        False,
        False,
        False,
        True,
        True,
    ]
    assert n.adaptation == e.adaptation.model_copy(update={"null_control": 1.0})
    assert (
        len({(a.run.steps, a.run.groups_per_step, a.env_adapter.rollouts) for a in parsed.values()})
        == 1
    )
    assert not any(
        a.adaptation.pairs_on_top for a in parsed.values() if a.adaptation.chosen.rewrites
    )
    assert e.algorithm.resolved.train_on_pairs == "both"
    assert set(BASELINES) | set(MAIN) == set(ARMS)
    assert set(STUDY.further) == set(BASELINES)
    assert not set(SEEDS) & set(TUNING_SEEDS)


def test_the_ood_tasks_are_none_that_the_pool_has() -> None:
    trained = [kind.options for kind in FULL.tasks if kind.train]
    most = max(max(options["receptacles"]) for options in trained)
    assert all("look" not in options["goals"] for options in trained)
    for kind in FULL.tasks:
        drawn = family("household").generate(count=4, seed=1, options=dict(kind.options))
        worlds = [world_of(params) for params in drawn]
        foreign = [len(world.receptacles) > most or world.goal.type == "look" for world in worlds]
        assert all(foreign) if kind.name == "ood" else not any(foreign)
    assert "look" in FULL.warm_start(1).generate["goals"]
    assert sum(kind.train for kind in FULL.tasks) == 256


FEW = tuple(replace(kind, heldout=min(kind.heldout, 1)) for kind in STUDY.quick.tasks)


@pytest.mark.parametrize("name", ["R", "log_ratio"])
def test_an_arm_goes_round(models: Models, name: str, tmp_path: Path) -> None:
    settings = replace(STUDY.quick, steps=1, groups=2, tasks=FEW)
    given = replace(models, keep=tmp_path / "judge")
    result = play(name, ARMS[name], 7, settings, given)
    assert set(result.evaluations[0]) == {"step", "sampled", "greedy", *MEASURES}
    assert len(result.steps) == 1
    assert result.tasks["proposals"] == {}
    assert (tmp_path / "judge" / "config.json").is_file()
    assert len(result.judged) == 4
    assert all(len(rows) == settings.groups for rows in result.judged.values())


# ---- who stands in for a model ----


def test_an_arm_may_have_the_judge_that_another_one_ends_with(tmp_path: Path) -> None:
    def asked(arm: str) -> tuple[Path, Path | None]:
        return judges_of(tmp_path, STUDY, FULL, Job(arm, 11), Path("warm"))

    warm, left = asked("R")
    assert (warm, asked("P")) == (Path("warm"), (Path("warm"), None))
    assert left is not None
    with pytest.raises(ConfigError, match=r"arm R ends with.*--arms R --seeds 11"):
        asked("last_judge")
    left.mkdir(parents=True)
    assert asked("last_judge") == (left, None)
    assert document("last_judge") == document("P")


def test_only_the_judges_demonstrations_are_labelled_by_the_planner() -> None:
    settings = FULL.warm_start(1)
    assert (
        played_with("judge", settings)
        == settings.options
        == document("R")["env_adapter"]["options"]
    )
    assert played_with("policy", settings) == {"wording": "terse"}


async def test_rewriters_without_a_model_answer_from_the_menu() -> None:
    lines = ["room: a (b), hint: no", "room: same, hint: yes", "goal: x. y"]
    request = GenerateRequest(
        messages=(ChatMessage(role="user", content="?"),), n=4,
        sampling=Sampling(regex=one_of(lines), seed=1),
    )  # fmt: skip
    replies = {name: await rewriter(request) for name, rewriter in REWRITERS.items()}
    texts = {name: [output.text for output in reply.outputs] for name, reply in replies.items()}
    assert texts["deterministic"] == [*lines, lines[0]]
    assert set(texts["random"]) <= set(lines)
    for name in ("deterministic", "random"):
        assert parse(document(name)) == parse(document("E"))
        assert ARMS[name].config["rewriter"] == name


# ---- the report ----


def _results() -> dict[tuple[str, int], dict[str, Any]]:
    found = {}
    for place, name in enumerate(("O", "P", "R", "E")):
        for seed in SEEDS:
            result = Result(name, seed)
            end = 0.2 + 0.01 * (seed % 3) + (0.1 + 0.001 * seed) * place - 0.2 * (name == "R")
            modes = dict.fromkeys(MEASURES, end)
            start = dict.fromkeys(MEASURES, 0.05)
            result.evaluations = [{"step": 0.0, **start}, {"step": 60.0, **modes}]
            result.steps = [{"success": 0.1, "tasks/accepted": float(n)} for n in range(12)]
            sums = {"O": None, "R": (3.0, 4.0, 9.0)}.get(name, (0.0, 4.0, 9.0))
            for step in result.steps[-2:] if sums else ():
                step |= dict(zip(GATE, sums or (), strict=True))
            result.judge = {"within/judge_last/policy_last": 0.625} if sums else {}
            rates = {"accepted": {"a": [0, 8], "b": [1, 8]}, "roots": {"r": [8, 8]}}
            result.tasks = {"proposals": {"accepted": 2}, "null_control": {}, "solved": rates}
            found[name, seed] = asdict(result)
    return found


def test_the_report_tests_what_was_planned_and_says_what_fell(tmp_path: Path) -> None:
    results = _results()
    page = Page(
        seeds=SEEDS, command="make experiment-table1", minutes=5.0, machine="2 cores",
        pictures=draw(results, tmp_path),
    )  # fmt: skip
    text = write(results, FULL, page)
    assert "- Held at 0.05: P > O, E > R, E > O.\n- Not shown: R > P, E > N.\n" in text
    assert "| O < P < R < E, ID, sampled (primary) |" in text
    assert "which are not reported: 921, 922, 923, 924, 925." in text
    for drawn in tmp_path.iterdir():
        assert drawn.stat().st_size < 60_000
        assert drawn.name in text
    assert len(list(tmp_path.iterdir())) == 6
    # the gate over the steps together: (3 + 3) / sqrt(8 * 18)
    assert "| `R` |  | 0.500 ± 0.000 |" in text
    assert "| `P` |  | 0.000 ± 0.000 |" in text
    assert "| `R` |  |  |  | 0.625 ± 0.000 |" in text
    assert "| `O` |  | 0" not in text
    # accepted tasks after each third of the steps, half of them solved by another policy
    shown = "| `E` |  |  | 3.000 ± 0.000 | 7.000 ± 0.000 | 11.000 ± 0.000 | 0.500 ± 0.000 | 1.000 ± 0.000 |"
    assert shown in text
