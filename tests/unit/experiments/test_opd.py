"""On-policy distillation next to GRPO: its arms, a run with a teacher's scores, and the arrival that its table counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from demo.models.tiny_models import SPECIAL, TinyShape, build_tiny_model
from experiments.loop import play
from experiments.opd import ARMS, STUDY
from experiments.opd_report import arrival, table
from experiments.record import Models
from triforge.chat_template import read_text, tokenizer_of
from triforge.config import parse
from triforge.errors import TrainerError

MODELS = {"policy": "p", "reward": "t", "rewriter": "r"}


def test_arms_differ_by_what_credits_the_student_and_the_teacher_is_measured_alone() -> None:
    teacher, grpo, opd = (parse(STUDY.full.document(arm, 1, MODELS)) for arm in ARMS.values())
    assert (teacher.models.policy.path, grpo.models.policy.path) == ("t", "p")
    assert (grpo.trained, opd.trained) == (("policy",), ("policy", "reward"))
    assert opd.models == grpo.models
    assert (opd.run, opd.env_adapter) == (grpo.run, grpo.env_adapter)


def test_a_run_learns_from_a_teacher_of_another_size_with_the_same_words(
    models: Models, tmp_path: Path
) -> None:
    ids = tokenizer_of(read_text(models.policy / "tokenizer.json")).get_vocab()
    words = [word for word in sorted(ids, key=ids.__getitem__) if word not in SPECIAL]
    shape = TinyShape(hidden=32, layers=2, heads=2)
    teacher = build_tiny_model(tmp_path / "teacher", words, shape=shape, seed=3)
    given = Models(models.policy, teacher, None)
    step = play("opd", ARMS["opd"], 7, STUDY.quick, given).steps[0]
    assert step["opd/reverse_kl"] > 0.0
    assert step["policy/updates"] > 0
    other = build_tiny_model(tmp_path / "other", words[::-1], shape=shape)
    with pytest.raises(TrainerError, match="tokenizer differs"):
        play("opd", ARMS["opd"], 7, STUDY.quick, Models(models.policy, other, None))


def _run(*success: float) -> dict[str, Any]:
    """A run with an evaluation every second step."""
    return {
        "evaluations": [{"step": 2.0 * n, "sampled": s} for n, s in enumerate(success)],
        "steps": [],
    }


def test_a_student_has_arrived_when_two_evaluations_in_a_row_reach_the_goal_in_the_mean() -> None:
    step = STUDY.full.groups * STUDY.full.rollouts
    assert arrival(_run(0.2, 0.5, 0.7, 0.8, 0.9), 0.72) == 6 * step
    assert arrival(_run(0.2, 0.9, 0.2, 0.3, 0.9), 0.72) is None, "one good evaluation is chance"


def test_the_table_counts_a_run_that_never_arrives_as_longer_than_any() -> None:
    results = {
        **{("teacher", seed): _run(0.8) for seed in (1, 2, 3)},
        **{("opd", seed): _run(0.2, 0.7, 0.8, 0.8) for seed in (1, 2)},
        **{("grpo", seed): _run(0.2, 0.3, 0.4, 0.5) for seed in (1, 2, 3)},
    }
    text = table(results)
    assert "Fewer with the teacher on 2 of 2 seeds, more on 0: p = 0.2500" in text
