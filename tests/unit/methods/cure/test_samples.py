"""Groups of programs: hidden tests credit the policy, programs credit the tests, and all of it is on record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from methods.cure.arithmetic import NO_GOOD_PROGRAM
from methods.cure.loop import unit_test_measures
from methods.cure.written import WrittenTest, extra_of_group
from services.trainer.credit.credited import NO_TOKENS, STALE, TOO_LONG
from services.trainer.credit.judged_groups import judged_by, stale_votes
from services.trainer.credit.options import Limits, SampleOptions
from services.trainer.credit.samples import Samples, build_samples
from services.trainer.loop.task_source import diagnosis_notes
from tests.unit.trainer.played import LOGPROB, PROMPT, group_task, task_of, trajectory
from triforge.algorithms.algorithm import resolve
from triforge.broker import group_judgement_id
from triforge.store.artifacts import ArtifactStore
from triforge.store.step_records import write_step_records
from triforge.types import (
    ErrorInfo,
    GroupJudgement,
    JudgedGroup,
    JudgeText,
    TrajectoryGroup,
    VersionSpan,
)

# programs g1, g2 pass all hidden tests, b1, b2 do not; one row a test, None could not be parsed
SHARES = (1.0, 1.0, 0.5, 0.0)
PATTERNS = ("1100", "1101", "1111", "1011", None, "1000")
REWARDS = [2, 1, 0, -2, 0, 0]
Z = [1.511, 0.687, -0.137, -1.786, -0.137, -0.137]
ROOMY = Limits(max_tokens=1000, max_rows=0)


def written(pattern: str | None, *, version: int | None = 1, tokens: int = 2) -> JudgeText:
    spans = () if version is None else (VersionSpan(version=version, start=0, end=tokens),)
    test = WrittenTest(
        input=None if pattern is None else "1\n",
        output=None if pattern is None else "2\n",
        accepts=tuple(c == "1" for c in pattern or ""),
    )
    return JudgeText(
        extra=test.extra,
        text=f"test {pattern}",
        ids=tuple(range(1, tokens + 1)),
        logprobs=(LOGPROB,) * tokens,
        versions=spans,
    )


TESTS = tuple(written(pattern) for pattern in PATTERNS)


def programs(
    shares: tuple[float | None, ...] = SHARES,
    tests: tuple[JudgeText, ...] | None = TESTS,
    error: ErrorInfo | None = None,
    purpose: str = "train",
) -> JudgedGroup:
    task = group_task(reward_kind="cure", rollouts=len(shares), votes=6, purpose=purpose)
    played = []
    for t, share in enumerate(shares):
        outcome = None if share is None else (1 if share == 1.0 else -1)
        one = trajectory(task, t, outcome=outcome, lengths=[] if share is None else [2])
        measured = one.outcome.model_copy(update={"share": share})
        played.append(one.model_copy(update={"outcome": measured}))
    given = None
    if tests is not None:
        ids = tuple(t.id for t in played if t.measured)
        given = GroupJudgement(
            group_id="g", prompt_ids=PROMPT, texts=tests, extra=extra_of_group(ids), error=error
        )
    group = TrajectoryGroup(group=task, task=task_of(task), trajectories=tuple(played))
    return JudgedGroup(played=group, votes=(None,) * len(played), judgement=given)


def keep(*groups: JudgedGroup, reward: Limits = ROOMY, **overrides: Any) -> Samples:
    return build_samples(
        groups, SampleOptions(algorithm=resolve("rlanything_paper", overrides), players={"policy": (1, ROOMY)},         judging={"reward": (1, reward)}, seed=7))  # fmt: skip


def recorded_tests(samples: Samples) -> list[dict[str, Any]]:
    return [text for record in samples.records for text in record["texts"]]


def test_programs_are_rewarded_by_hidden_tests_and_tests_by_programs() -> None:
    samples = keep(programs())
    assert [r["reward"] for r in samples.records] == [1.0, 1.0, 0.5, 0.0]
    assert [r["share"] for r in samples.records] == list(SHARES)
    z = [0.9045, 0.9045, -0.3015, -1.5076]
    assert [r["advantage"] for r in samples.records] == pytest.approx(z, abs=1e-4)
    assert len(samples.rows["policy"]) == 4
    on_record = recorded_tests(samples)
    assert [t["reward"] for t in on_record] == REWARDS
    assert [t["advantage"] for t in on_record] == pytest.approx(Z, abs=1e-3)
    assert [r["votes"] for r in samples.records] == [[]] * 4


def test_the_diagnosis_learns_how_programs_fared_on_hidden_tests_and_on_those_of_the_judge() -> (
    None
):
    failed = [note for note in diagnosis_notes(programs()) if not note.success]
    assert [(note.hidden, note.judgement.split(" tests")[0]) for note in failed] == [
        (0.5, "2 of 5"),
        (0.0, "3 of 5"),
    ]
    untested = programs(tests=())
    assert [note.judgement for note in diagnosis_notes(untested)[:1]] == [""]


def test_every_test_is_a_row_of_the_reward_model_with_its_advantage_on_its_own_tokens_only() -> (
    None
):
    samples = keep(programs())
    assert [row.key for row in samples.rows["reward"]] == [f"g/texts/{j}" for j in range(6)]
    for row, wanted in zip(samples.rows["reward"], Z, strict=True):
        assert row.ids == (*PROMPT, 1, 2)
        assert row.logprobs == (0.0, 0.0, 0.0, LOGPROB, LOGPROB)
        assert row.advantages == pytest.approx((0, 0, 0, wanted, wanted), abs=1e-3)
        assert row.weights == pytest.approx((0, 0, 0, 1 / 12, 1 / 12))
        assert row.versions == (-1, -1, -1, 1, 1)
    assert sum(t["weight"] for t in recorded_tests(samples)) == pytest.approx(1.0)


def test_the_matrix_is_on_record_once_and_comes_back_from_the_file(tmp_path: Path) -> None:
    samples = keep(programs(shares=(None, *SHARES)))
    assert [r["step_index"] for r in samples.records] == [0] * 4  # the first was not even begun
    store = ArtifactStore(str(tmp_path))
    write_step_records(store, "one.parquet", samples.records)
    first, *others = pq.read_table(tmp_path / "one.parquet").to_pylist()
    assert json.loads(first["extra"]) == {"cure": ["g-01", "g-02", "g-03", "g-04"]}
    assert first["judge_prompt_ids"] == list(PROMPT)
    tests = [json.loads(text["extra"])["cure"] for text in first["texts"]]
    rows = [None if t["input"] is None else "".join("01"[ok] for ok in t["accepts"]) for t in tests]
    assert rows == list(PATTERNS)
    assert all((other["texts"], other["extra"]) == ([], "") for other in others)


def test_what_is_not_trained_on_says_why() -> None:
    tests = (
        written("1100", version=0),
        written("1101", version=None),
        written("1111", tokens=9),
        written("1011"),
    )
    samples = keep(programs(tests=tests), reward=Limits(max_tokens=8, max_rows=0))
    reasons = [t["reason"] for t in recorded_tests(samples)]
    assert reasons == [STALE, STALE, TOO_LONG, ""]
    assert [row.key for row in samples.rows["reward"]] == ["g/texts/3"]
    nothing = keep(programs(tests=(written("1100", version=None, tokens=0), written("1101"))))
    assert recorded_tests(nothing)[0]["reason"] == NO_TOKENS


def test_without_a_good_program_tests_train_no_model_and_programs_are_still_compared() -> None:
    samples = keep(programs(shares=(0.5, 0.0), tests=(written("10"), written("00"))))
    assert [t["reason"] for t in recorded_tests(samples)] == [NO_GOOD_PROGRAM] * 2
    assert (len(samples.rows["policy"]), samples.rows["reward"]) == (2, [])


def test_a_held_out_or_measured_group_trains_no_model() -> None:
    samples = keep(programs(purpose="measure_candidate"), train_on_pairs="parent")
    assert {t["reason"] for t in recorded_tests(samples)} == {"measures a rewrite"}
    assert (samples.rows["policy"], samples.rows["reward"]) == ([], [])


def test_a_group_whose_tests_could_not_be_run_trains_the_policy_alone() -> None:
    error = ErrorInfo(kind="sandbox", detail="no bubblewrap", retryable=True)
    for group in (programs(tests=(), error=error), programs(tests=None)):
        samples = keep(group)
        assert (len(samples.rows["policy"]), samples.rows["reward"]) == (4, [])


def test_the_versions_of_tests_are_those_of_the_judge_and_old_ones_are_written_again() -> None:
    group = programs(tests=(written("1100", version=3), written("1100", version=5)))
    assert judged_by(group) == {("reward", 3), ("reward", 5)}
    assert stale_votes(group, {"reward": 3}) == ()
    assert stale_votes(group, {"reward": 4}) == (group_judgement_id("g"),)
    assert stale_votes(programs(tests=()), {"reward": 4}) == ()


def test_the_measures_of_a_step_hold_code_ut_and_detect() -> None:
    error = ErrorInfo(kind="sandbox", detail="no bubblewrap", retryable=True)
    lost = programs(shares=(0.0, 0.0), tests=(), error=error)
    measures = unit_test_measures([programs(), lost])
    found = {name: value for name, value in measures.items() if name.startswith("unit_tests/")}
    assert found == pytest.approx(
        {
            "unit_tests/code": 2 / 6,
            "unit_tests/ut": 0.5,
            "unit_tests/detect": 1 / 6,
            "unit_tests/written": 6.0,
            "unit_tests/failed": 1.0,
            "unit_tests/invalid": 1 / 6,
            "unit_tests/hidden": 2.5 / 6,
        }
    )
