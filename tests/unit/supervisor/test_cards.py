"""Engines and learners of a machine with cards: which programs, on which cards, of which version."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import SecretStr
from safetensors.torch import save_file

from tests.unit.supervisor.test_layout import SHAPE, planned
from triforge.config import Settings, parse
from triforge.errors import ConfigError
from triforge.supervisor.engines import VERSIONS
from triforge.supervisor.layout import Layout, demand_startable

ROOT = Path(__file__).parents[3]
ALONE = {"adaptation": {"controller": "none"}}
GRPO = {"algorithm": {"preset": "grpo"}}


def program(path: Path, *lines: str) -> Path:
    """A program that prints lines, whatever it is asked."""
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text("#!/bin/sh\n" + "".join(f"echo {line}\n" for line in lines))
    path.chmod(0o755)
    return path


def torch_for(build: str, folder: Path) -> Path:
    """A folder that shows, where it is first among the places of packages, another build of the torch that is installed."""
    version = f"{torch.__version__.partition('+')[0]}+{build}"
    found = folder / build / f"torch-{version}.dist-info"
    found.mkdir(parents=True)
    (found / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
    return found.parent


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Plan a start on a machine of eight cards that has an engine."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.syspath_prepend(torch_for("cu130", tmp_path))
    lines = [f"{n}, GPU-{n}, NVIDIA A100-SXM4-80GB, 81920" for n in range(8)]
    program(tmp_path / "bin" / "nvidia-smi", *lines)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    def start(has: str = "sglang", **sections: Any) -> Layout:
        python = program(tmp_path / has / "python", VERSIONS[has])
        settings = Settings(engine_python=str(python), api_key=SecretStr("user"))
        return planned(tmp_path, {}, settings, **ALONE | sections)

    return start


def cards(layout: Layout) -> dict[str, str]:
    return {
        spec.name: spec.env["CUDA_VISIBLE_DEVICES"]
        for spec in layout.specs
        if "CUDA_VISIBLE_DEVICES" in spec.env
    }


def test_engines_and_learners_divide_the_cards(machine: Any) -> None:
    layout = machine(machine={"gpus": "8"}, trainer={"policy": {"ranks": 2}})
    engines = {name: own for name, own in cards(layout).items() if name.startswith("engine-")}
    learners = {name: own for name, own in cards(layout).items() if name.startswith("learner-")}
    used = [card for own in (*engines.values(), *learners.values()) for card in own.split(",")]
    assert sorted(used) == [str(n) for n in range(8)]
    assert set(learners) == {"learner-policy", "learner-reward"}
    specs = {spec.name: spec for spec in layout.specs}
    for role in ("policy", "reward"):
        (served,) = {s.env["TRIFORGE_ENGINES"] for s in layout.specs if s.name == f"{role}-model"}
        own = [spec for name, spec in specs.items() if name.startswith(f"engine-{role}")]
        assert served.split(",") == [spec.ready_url.removesuffix("/ready") for spec in own]
        assert all("sglang.launch_server" in " ".join(spec.command) for spec in own)
    assert len(learners["learner-policy"].split(",")) == 2
    assert "--nproc-per-node=2" in specs["learner-policy"].command
    (shown,) = {line for line in layout.placement.lines() if line.startswith("learner of policy")}
    first, last = learners["learner-policy"].split(",")
    assert f"cards {first}-{last}, 2 ranks" in shown


def test_engines_get_what_their_clients_need(machine: Any, tmp_path: Path) -> None:
    trainer = {"policy": {"lora_rank": 8}}
    layers = {f"model.layers.0.mlp.{name}.weight": torch.ones(2, 2) for name in ("up", "down")}
    outside = {"lm_head.weight": torch.ones(2, 2), "model.layers.0.norm.weight": torch.ones(2)}
    (tmp_path / "model").mkdir()
    save_file(layers | outside, tmp_path / "model" / "model.safetensors")
    layout = machine(machine={"gpus": "1"}, run={"colocate": True}, trainer=trainer)
    specs = {spec.name: spec for spec in layout.specs}
    policy, reward = specs["engine-policy"].command, specs["engine-reward"].command
    assert "--max-lora-rank=8" in policy
    modules = policy.index("--lora-target-modules") + 1
    assert policy[modules : modules + 2] == ("down", "up"), "no lm_head, which ends vLLM"
    assert policy[modules + 2].startswith("--")
    assert "--enable-lora" not in reward
    assert "--enable-memory-saver" in reward
    assert specs["engine-policy"].env["ENGINE_API_KEY"] == "user"
    assert not any("user" in word for word in policy), "others see the arguments of a process"
    shares = [float(command[3]) for command in (policy, reward)]
    assert sum(shares) == pytest.approx(0.85, abs=0.01), "of the card"
    assert specs["engine-policy"].first, "which the second can tell only later"
    assert set(cards(layout).values()) == {"0"}


@pytest.mark.parametrize(
    ("free", "fraction"), [((81920, 81920), 0.4), ((81920, 40960), 0.8), ((4096, 81920), 0.95)]
)
def test_sglang_takes_its_share_of_the_card_whatever_is_free(
    machine: Any, tmp_path: Path, free: tuple[int, int], fraction: float
) -> None:
    layout = machine(machine={"gpus": "2"})
    command = next(s for s in layout.specs if s.name == "engine-policy").command
    program(tmp_path / "bin" / "nvidia-smi", *(f"81920, {mib}" for mib in free))
    server = tmp_path / "sglang" / "launch_server.py"
    server.write_text("import sys; print(*sys.argv[1:])")
    shown = subprocess.run(
        [sys.executable, *command[1:3], "0.4", *command[4:]], capture_output=True, text=True, check=True, cwd=tmp_path,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "0,1", "ENGINE_API_KEY": "user", "PYTHONPATH": str(tmp_path)},
    ).stdout.split()  # fmt: skip
    assert f"--mem-fraction-static={fraction:.3f}" in shown
    assert "--api-key=user" in shown


def test_without_cards_engines_and_ranks_are_on_the_cpu(machine: Any) -> None:
    layout = machine(machine={"engine": "sglang", "gpus": "0"}, trainer={"policy": {"ranks": 2}})
    specs = {spec.name: spec for spec in layout.specs}
    assert set(cards(layout).values()) == {""}
    assert "--device=cpu" in specs["engine-policy"].command
    assert "--nproc-per-node=2" in specs["learner-policy"].command
    assert not any(word.startswith("--nproc") for word in specs["learner-reward"].command)


def test_vllm_without_cards_reads_whole_prompts(machine: Any) -> None:
    layout = machine("vllm", machine={"engine": "vllm", "gpus": "0"}, **GRPO)
    (engine,) = (spec for spec in layout.specs if spec.name == "engine-policy")
    assert "--no-enable-chunked-prefill" in engine.command
    assert "--max-num-batched-tokens=4096" in engine.command


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"tie_word_embeddings": True}, r"tie_word_embeddings = true"),
        ({"head_dim": 16}, r"heads of 16 numbers"),
    ],
)
def test_vllm_without_cards_does_not_get_what_it_cannot_serve(
    machine: Any, tmp_path: Path, config: dict[str, Any], sentence: str
) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SHAPE | config))
    sections = GRPO | {"models": {"policy": {"path": str(folder)}}}
    with pytest.raises(ConfigError, match=rf"models.policy.path: .*{sentence}"):
        machine("vllm", machine={"engine": "vllm", "gpus": "0"}, **sections)
    assert machine("vllm", machine={"engine": "vllm", "gpus": "8"}, **sections)


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"machine": {"gpus": "9"}}, "there are 8 here"),
        ({"machine": {"gpus": "8"}, "trainer": {"policy": {"ranks": 8}}}, "a run that fits"),
        ({"machine": {"gpus": "8x80GB"}}, "expected a number"),
        ({"machine": {"gpus": "1"}}, "a run that fits"),
        (
            {"machine": {"engine": "sglang", "gpus": "0"}, "run": {"colocate": True}},
            "run.colocate: .*GPU",
        ),
        ({"machine": {"engine": "vllm"}}, r"found 0.5.23; install it: scripts/setup.sh vllm"),
    ],
)
def test_what_the_machine_cannot_do_is_refused(
    machine: Any, sections: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        machine(**sections)


def test_cards_are_not_given_to_a_torch_without_cuda(
    machine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(torch_for("cpu", tmp_path))
    with pytest.raises(ConfigError, match=r"\+cpu has no CUDA; .*scripts/setup.sh demo"):
        machine(machine={"gpus": "8"})
    assert machine(machine={"engine": "sglang", "gpus": "0"})


def test_the_engine_is_missed_with_the_command_that_installs_it(tmp_path: Path) -> None:
    settings = Settings(engine_python=str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"scripts/setup.sh sglang"):
        planned(tmp_path, {}, settings, machine={"engine": "sglang"}, **ALONE)


def test_an_engine_that_could_not_take_turns_need_not_be_installed() -> None:
    machine = {"engine": "sglang", "gpus": "0"}
    with pytest.raises(ConfigError, match=r"run\.colocate"):
        demand_startable(
            Settings(engine_python="none"), parse({"run": {"colocate": True}, "machine": machine})
        )


def test_the_version_that_is_asked_for_is_the_one_that_is_installed() -> None:
    for kind in ("cpu", "gpu"):
        lines = (ROOT / "scripts" / "real_sglang" / f"requirements-{kind}.txt").read_text()
        assert f"sglang=={VERSIONS['sglang']}" in lines.splitlines()
