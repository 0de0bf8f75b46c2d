"""How far rewrites reach: the table recomputed by hand, and that the run goes round."""

from __future__ import annotations

from dataclasses import replace

from experiments.loop import play
from experiments.reach import REACH, ReachSettings, table
from experiments.reach_run import ReachRun
from experiments.record import Models


def test_the_table_counts_rewrites_that_move_into_the_band() -> None:
    rows = [
        {"kind": "id", "direction": "easier", "parent": [0, 16], "kept": [[0, 16], [4, 16]], "other": [[16, 16]]},
        {"kind": "id", "direction": "easier", "parent": [0, 16], "kept": [[1, 16], [2, 16]], "other": []},
        {"kind": "id", "direction": "harder", "parent": [16, 16], "kept": [[16, 16], [8, 16]], "other": []},
    ]  # fmt: skip
    lines = table({("menu", 11): {"tasks": {"rows": rows}}}).splitlines()[2:6]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [line[:3] + line[4:5] + line[8:] for line in cells] == [
        ["id", "easier", "2", "goal kept", "1 of 2"],
        ["id", "easier", "2", "another type of goal", "0 of 2"],
        ["id", "harder", "1", "goal kept", "1 of 1"],
        ["id", "harder", "1", "another type of goal", "0 of 1"],
    ]
    assert cells[0][7].startswith("0.250")  # half of one task's, none of the other's
    assert cells[1][6].startswith("1.000")  # of the one task that has any


def test_every_task_outside_the_band_is_played_with_its_menu(models: Models) -> None:
    assert isinstance(REACH.quick, ReachSettings)
    kinds = tuple(replace(kind, train=min(kind.train, 1), heldout=0) for kind in REACH.quick.tasks)
    settings = replace(REACH.quick, tasks=kinds, asked=1, measured=1)
    rows = play("menu", REACH.arms["menu"], 7, settings, models, make=ReachRun).tasks["rows"]
    assert [row["kind"] for row in rows] == ["id", "medium"]
    for row in rows:
        assert row["direction"] == "easier"  # untrained models never succeed
        assert row["parent"] == [0, 1]
        assert row["kept"]
        assert all(counts == [0, 1] for counts in row["kept"] + row["other"])
