"""The commands as people type them."""

from __future__ import annotations

import json
from pathlib import Path

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
