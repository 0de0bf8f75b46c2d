"""The summary of chaos: a round that was not played, or not tried, does not count as held."""

from __future__ import annotations

import json
from pathlib import Path

from chaos.play import Result
from chaos.record import sums, table, write

HELD = Result("storm", 0, 1, found={"recovery_s": [3.0], "missed": ["no process was there"]})
BROKEN = Result("storm", 1, 2, wrong=["once: twice"])
LATE = Result("apis", 0, 3, wrong=["the 27 minutes were over before"], played=False)
SPARE = Result("apis", 1, 5, wrong=["the 27 minutes were over before"], played=False, spare=True)
UNTRIED = Result("full-disk", 0, 4, untried="no disk of its own")


def test_the_last_lines_name_every_round_that_did_not_hold_and_why() -> None:
    lines = sums([HELD, BROKEN, LATE, UNTRIED])
    assert lines[0] == "1 of 4 rounds held every promise"
    assert lines[1].startswith("broken: storm 2;")
    assert lines[2].startswith("not played: apis 1, for the 27 minutes were over before;")
    assert lines[3:] == ["not tried: full-disk 1, for no disk of its own"]
    (_, left_out) = sums([HELD, SPARE])
    assert left_out == "left out, for the 27 minutes were over before: second rounds of apis"
    assert sums([HELD]) == ["1 of 1 rounds held every promise"]


def test_the_table_says_what_was_broken_not_tried_or_hit_nothing() -> None:
    results = table([HELD, BROKEN, LATE, UNTRIED]).columns[-1]
    assert list(results.cells) == [
        "held, broken, 1 of the blows hit nothing", "not played", "not tried",
    ]  # fmt: skip


def test_the_record_for_programs_has_the_reason_of_each_round(tmp_path: Path) -> None:
    write([HELD, BROKEN, LATE, UNTRIED], tmp_path, seed=5, seconds=60.0)
    rounds = json.loads((tmp_path / "chaos.json").read_text())["rounds"]
    assert [r["result"] for r in rounds] == ["held", "broken", "not played", "not tried"]
    assert [r["untried"] for r in rounds] == ["", "", "", "no disk of its own"]
