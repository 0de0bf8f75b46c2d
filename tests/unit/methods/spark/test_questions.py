"""Choice of the rollouts that become questions, against the counts of SPARK's released code."""

from __future__ import annotations

from collections import Counter

from methods.spark.questions import Item, choose

RIGHT, WRONG, MIXED = [1] * 8, [-1] * 8, [1, -1] * 4


def drawn(*rows: list[int | None], cap: int = 32, seed: int = 1, blank: int = 0) -> list[Item]:
    read = [[n >= blank for n in range(len(row))] for row in rows]
    return choose(rows, read, cap=cap, seed=seed)


def test_a_group_of_one_outcome_gives_one_rollout_to_judge_and_only_failures_one_to_mend() -> None:
    assert drawn(RIGHT) == [Item("pointwise", 0, (0,), 1)]
    judged, mended = drawn(WRONG, blank=7)
    assert judged == Item("pointwise", 0, (7,), -1), "the only one with an answer"
    assert (mended.kind, mended.verdict, mended.whole) == ("reflection", 0, True)
    assert [item.kind for item in drawn(WRONG, blank=8)] == ["reflection"], "nothing to judge"
    assert drawn([None] * 8) == []


def test_a_mixed_group_gives_three_in_ten_times_one_rollout_and_else_a_pair_in_either_order() -> (
    None
):
    found = [drawn(MIXED, seed=seed)[0] for seed in range(4000)]
    share = Counter(item.kind for item in found)["pointwise"] / 4000
    assert 0.28 < share < 0.32
    for kind in ("pointwise", "pairwise"):
        sides = [item.verdict for item in found if item.kind == kind]
        assert 0.45 < sides.count(1) / len(sides) < 0.55
    for item in found:
        assert [MIXED[n] for n in item.rollouts] == [item.verdict, -item.verdict][
            : len(item.rollouts)
        ]
    unmeasured = drawn([1, None, -1, None])
    assert {n for item in unmeasured for n in item.rollouts} <= {0, 2}


def test_64_groups_give_32_questions_and_32_attempts_to_mend_half_of_them_by_the_answer() -> None:
    found = drawn(*[MIXED] * 64)
    assert len(found) == 64
    kinds = Counter(item.kind for item in found)
    assert kinds["pointwise"] + kinds["pairwise"] == kinds["reflection"] == 32
    assert len({(item.kind == "reflection", item.group) for item in found}) == 64
    assert drawn(*[MIXED] * 64) == found
    everything = drawn(*[MIXED] * 64, cap=64)
    whole = [item.whole for item in everything if item.kind == "reflection"]
    assert whole == [True] * 32 + [False] * 32
    assert all(item.rollouts[0] % 2 for item in everything if item.kind == "reflection")
