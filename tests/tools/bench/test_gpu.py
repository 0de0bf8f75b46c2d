"""The bench for a GPU: what can be run of it on a CPU in seconds, and what becomes of parts that die. The rest: make gpu REHEARSE=1."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.gpu.__main__ import main
from bench.gpu.part import cases_of, run
from bench.gpu.results import read, run_all, table, write
from bench.gpu.supervise import PARTS

QUICK = {
    "engine": ("agree",), "colocate": ("tiny",), "learner": ("bfloat16", "fsdp", "lora", "resume"),
    "throughput": ("tiny-full-256", "tiny-lora-16-256-recompute"),
}  # fmt: skip


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("part", "case"), [(part, case) for part, names in QUICK.items() for case in names]
)
def test_a_case_runs_on_a_cpu(part: str, case: str) -> None:
    found = run(cases_of(part, rehearse=True)[case])
    assert found
    assert found.get("packs", True)


def test_every_part_has_cases_with_and_without_a_gpu() -> None:
    for part in PARTS:
        for rehearse in (True, False):
            assert cases_of(part, rehearse=rehearse)


def test_one_command_writes_results_and_goes_on_where_they_stop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [
        "engine",
        "--rehearse",
        "--cases",
        "agree",
        "--out",
        str(tmp_path),
        "--packages",
        str(tmp_path),
    ]
    assert main(asked) == 0
    kept = read(tmp_path / "engine.json")
    assert kept["cases"]["agree"]["status"] == "ok"
    assert kept["machine"]["device"].startswith("CPU")
    assert "| engine | agree | ok | " in capsys.readouterr().out
    assert main([*asked, "--resume", "--table"]) == 0
    assert read(tmp_path / "engine.json") == kept


def test_a_part_that_dies_goes_on_behind_the_case_that_killed_it(tmp_path: Path) -> None:
    calls: list[list[str]] = []

    def dies(_: str, path: Path, *__: Any, **___: Any) -> int:
        document = read(path)
        calls.append(sorted(document["cases"]))
        name = "first" if len(calls) == 1 else "second"
        status = "running" if name == "first" else "ok"
        document["planned"] = ["first", "second", "third"]
        document["cases"][name] = {
            "status": status,
            "began": 0.0,
            "figures": {"tokens_per_s": 1234.5},
        }
        write(path, document)
        return -9 if name == "first" else 0

    limits: dict[str, Any] = {
        "rehearse": True,
        "chosen": "",
        "seconds": 60.0,
        "total": 60.0,
        "run": dies,
    }
    run_all(tmp_path, ["learner"], {}, resume=False, **limits)
    assert calls == [[], ["first"]]
    text, failed = table(tmp_path)
    assert failed == 1
    assert "learner first: the process ended with -9" in text
    assert "| learner | second | ok | tokens_per_s 123" in text
    assert "| learner | third | not run |" in text
    run_all(tmp_path, ["learner"], {}, resume=True, **limits)
    assert calls[2] == ["second"]  # what failed is tried again
    assert json.loads((tmp_path / "learner.json").read_text())["cases"].keys() == {"second"}
