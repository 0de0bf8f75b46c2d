"""The ablation of the diagnosis: every arm proposes and measures, and the table says what the rows say."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from experiments import diagnosis, diagnosis_report
from experiments.diagnosis_run import DiagnosisRun
from experiments.loop import play
from experiments.record import Models


def _quick() -> diagnosis.DiagnosisSettings:
    quick = diagnosis.STUDY.quick
    assert isinstance(quick, diagnosis.DiagnosisSettings)
    return quick


def test_an_arm_of_the_ablation_proposes_and_measures(models: Models) -> None:
    name, quick = "shuffled", replace(_quick(), proposals=3, measured=2)
    result = play(name, diagnosis.ARMS[name], 7, quick, models, make=DiagnosisRun)
    rows = result.tasks["rows"]
    assert len(rows) == quick.proposals
    # untrained models never win, so that every task should be easier
    assert {(row["direction"], tuple(row["parent"])) for row in rows} == {("easier", (0, 2))}
    assert all(row["diagnosis"].startswith("Missed") for row in rows)
    results = {(name, 7): asdict(result)}
    text = diagnosis_report.table(results)
    assert f"| `{name}` | {diagnosis.ARMS[name].title} | 3 | 0.000 ± 0.000 |" in text


def test_a_proposal_counts_where_it_moved_as_asked_into_the_band() -> None:
    def row(direction: str, parent: int, candidate: int) -> dict[str, Any]:
        return {
            "direction": direction,
            "kept": True,
            "parent": [parent, 10],
            "candidate": [candidate, 10],
        }

    rows = [
        row("easier", 1, 5),
        row("easier", 1, 9),
        row("harder", 9, 5),
        row("harder", 2, 5),
        {"direction": "easier"},
    ]
    accepted, inside, kept = diagnosis_report.shares(rows)
    assert (accepted[:5], inside[:5], kept[:5]) == ("0.400", "0.750", "1.000")
