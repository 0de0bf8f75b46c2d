"""The commands as people type them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from demo.models import __main__ as models
from services.trainer.learner import commands
from triforge.rendering import Renderer
from triforge.store.manifests import verify_manifest


def test_a_blank_model_is_made_and_trained_by_two_commands(tmp_path: Path):
    words, data = tmp_path / "words.txt", tmp_path / "data.jsonl"
    words.write_text("go fridge\nok\n")
    chat = [{"role": "user", "content": "ok"}, {"role": "assistant", "content": "go fridge"}]
    data.write_text(json.dumps({"messages": chat}) + "\n")
    blank, out, report = tmp_path / "blank", tmp_path / "out", tmp_path / "report.json"
    sizes = ["--hidden", "8", "--layers", "1", "--heads", "1"]
    assert models.main(["tiny-model", "--words", str(words), "--out", str(blank), *sizes]) == 0
    arguments = [
        "--model",
        str(blank),
        "--data",
        str(data),
        "--out",
        str(out),
        "--report",
        str(report),
    ]
    arguments += ["--steps", "3", "--eval-share", "0", "--learning-rate", "0.01"]
    assert commands.run("supervised", arguments) == 0
    verify_manifest(out)
    assert Renderer.from_folder(out).encode_text("go fridge ok") == [7, 6, 8]
    found = json.loads(report.read_text())
    assert [step for step, _ in found["train"]] == [0, 1, 2]
    assert found["options"]["learning_rate"] == 0.01


@pytest.mark.parametrize(
    ("command", "arguments", "sentence"),
    [
        ("tiny-model", ["--words", "nowhere", "--out", "x"], "input: --words nowhere: cannot be read"),
        ("supervised", ["--model", "nowhere", "--data", "d", "--out", "x", "--steps", "1"], "weights: "),
        ("supervised", ["--model", "m", "--data", "d", "--out", "x"], "steps and seconds: given 0 and 0"),
    ],
)  # fmt: skip
def test_an_error_is_one_sentence_and_status_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    arguments: list[str],
    sentence: str,
):
    monkeypatch.chdir(tmp_path)
    run = models.main if command == "tiny-model" else partial(commands.run, command)
    assert run([command, *arguments] if command == "tiny-model" else arguments) == 1
    output = capsys.readouterr().err
    assert sentence in output
    assert output.count("\n") == 1
    assert not (tmp_path / "x").exists()
