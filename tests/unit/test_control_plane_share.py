"""How the bench holds the loop against the queue alone."""

from __future__ import annotations

from typing import Any

import pytest

from bench.control_plane_share import shares, show_share, summary


def test_a_round_is_held_against_what_the_queue_bore_before_and_after_it() -> None:
    assert shares([600.0, 300.0], [900.0, 700.0, 500.0]) == [0.75, 0.5]


def test_the_middle_round_counts_and_the_range_is_told() -> None:
    assert summary([0.9, 0.5, 0.7]) == {"median": 0.7, "least": 0.5, "most": 0.9}


def a_round(rate: float) -> dict[str, Any]:
    return {
        "trajectories_s": rate, "cpu_ms_all": 3.0, "cores": 1.5, "resent": 0.0, "turns": 1, "votes": 1, "steps": 2,
        "trajectories": 512, "cpu_ms": {"orchestrator": 3.0}, "others_cores": 0.01,
    }  # fmt: skip


@pytest.mark.parametrize(("rate", "word"), [(480.0, "reached"), (470.0, "not reached")])
def test_the_table_says_whether_the_share_was_reached(
    rate: float, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    share = rate / 800
    show_share(
        {
            "alone": {"loop": [a_round(800.0)] * 2}, "rounds": [a_round(rate)], "longer": a_round(100.0),
            "shares": {"loop": [share]}, "share": {"loop": summary([share])},
        }
    )  # fmt: skip
    shown = capsys.readouterr().out
    assert f"wanted 60%, {word}\n" in shown
    assert "a training step of 256 trajectories 768" in shown
