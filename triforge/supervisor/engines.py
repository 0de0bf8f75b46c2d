"""The engines that a deployment starts: which program, of which version, with which options."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from triforge.chat_template import read_json
from triforge.config import RunConfig, Settings
from triforge.config.sections import EngineName
from triforge.errors import ConfigError
from triforge.planning.options import lora_options, served_learners, sglang_options
from triforge.planning.shapes import ModelShape
from triforge.store.model_config import ties_embeddings
from triforge.store.tensor_files import read_folder
from triforge.supervisor.placement import Seat
from triforge.supervisor.process import ProcessSpec
from triforge.types import Role

VERSIONS: Final[Mapping[str, str]] = {"sglang": "0.5.23", "vllm": "0.32.0"}
_ROOT = Path(__file__).parents[2]
# What SGLang's wheels need without a card; only a checkout of triforge has it.
_CPU_LAUNCHER = _ROOT / "scripts" / "real_sglang" / "launch_cpu.py"
_START_S = 1800.0  # a large model is read and its kernels are compiled
# Plain PyTorch kernels, the learner's precision (bfloat16 is slower), and a cache whose size does not follow from the memory.
SGLANG_CPU = (
    "--device=cpu", "--dtype=float32", "--attention-backend=torch_native", "--sampling-backend=pytorch", "--disable-cuda-graph",
    "--disable-overlap-schedule", "--mem-fraction-static=0.3", "--max-total-tokens=32768", "--max-running-requests=16",
    "--skip-server-warmup", "--sleep-on-idle",
)  # fmt: skip
# SGLang takes a share of what is free when it starts: another engine may be on the card, before a restart as well.
_SGLANG = """
import os, runpy, subprocess, sys
cards, share = os.environ["CUDA_VISIBLE_DEVICES"], float(sys.argv.pop(1))
ask = ["nvidia-smi", "-i", cards, "--query-gpu=memory.total,memory.free", "--format=csv,noheader,nounits"]
shown = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.splitlines()
least = max(float(total) / max(1.0, float(free)) for total, free in (line.split(",") for line in shown))
sys.argv.append(f"--mem-fraction-static={min(0.95, share * least):.3f}")
for name in ("api-key", "admin-api-key"):
    if key := os.environ.get("ENGINE_" + name.upper().replace("-", "_")):
        sys.argv.append(f"--{name}={key}")
runpy.run_module("sglang.launch_server", run_name="__main__")
"""
_KEYS = {"local": "LOCAL_ENGINE", "sglang": "ENGINE", "vllm": "VLLM"}  # prefixes of the variables
VLLM = (  # what the client needs
    "--enable-scale-out", "--logprobs-mode=processed_logprobs", "--return-tokens-as-token-ids", "--enable-prompt-tokens-details",
)  # fmt: skip
_VLLM_CPU_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)  # sizes that its kernel has
VLLM_ENV = {
    "VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1",
}  # fmt: skip
ENV = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def interpreter(engine: EngineName, settings: Settings) -> Path:
    """Return the interpreter that has SGLang or vLLM in the version that this triforge was tried with; else ConfigError."""
    given = settings.engine_python or _ROOT / f".venv-{engine}" / "bin" / "python"
    python, wanted = Path(given).absolute(), VERSIONS[engine]
    ask = f"from importlib.metadata import version; print(version({engine!r}))"
    try:
        command = [str(python), "-c", ask]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    except OSError as error:
        found = f"none: {python} does not run ({error.strerror})"
    else:
        found = done.stdout.strip() if done.returncode == 0 else f"none in {python}"
    if found.partition("+")[0] != wanted:
        raise ConfigError(
            f"machine.engine: {engine} {wanted} is needed, found {found}; install it: scripts/setup.sh {engine}, or name the "
            "interpreter that has it in TRIFORGE_ENGINE_PYTHON"
        )
    return python


def engine_spec(
    name: str, role: Role, port: int, seat: Seat, config: RunConfig, settings: Settings, env: Mapping[str, str]
) -> tuple[ProcessSpec, str]:  # fmt: skip
    """Return the process of an engine that serves a role on a port, and its address for the policy service."""
    engine, url = config.machine.serving, f"http://127.0.0.1:{port}"
    model = Path(getattr(config.models, role).path)
    served = (f"--served-model-name={role}", f"--port={port}")
    keys = {"API_KEY": settings.api_key, "ADMIN_API_KEY": settings.admin_api_key}
    # the policy service sends them, so the engine asks for them; who lists processes does not see the environment
    values = {f"{_KEYS[engine]}_{key}": value.get_secret_value() for key, value in keys.items()}
    secret = {key: value for key, value in values.items() if value}
    if engine == "local":
        options = [f"--model-path={model}", *served, "--weight-version=0", "--log-level=warning"]
        command = (sys.executable, "-m", "services.local_engine", *options)
        own = {**env, **secret, **seat.env}
        return ProcessSpec(name=name, command=command, env=own, ready_url=f"{url}/ready"), url
    python, linear = interpreter(engine, settings), _linear(model)
    own, ready, address = {**ENV, **secret, **seat.env}, f"{url}/ready", url
    if engine == "sglang":
        program = [str(python), *_sglang(model, seat, sglang_options(config, role, linear))]
    else:
        lora = lora_options(config, role, linear)
        vllm = [str(python.parent / "vllm"), "serve", str(model)]
        if not seat.cards:
            _demand_for_cpu(model, role, loads=not lora and bool(served_learners(config, role)))
        program = [*vllm, *_vllm(model, seat, lora, colocate=config.run.colocate)]
        own, ready, address = own | VLLM_ENV, f"{url}/health", f"vllm+{url}"
    command = (*program, "--host=127.0.0.1", *served)
    spec = ProcessSpec(
        name=name, command=command, env=own, ready_url=ready, first=not seat.alone, start_s=_START_S
    )
    return spec, address


def _linear(model: Path) -> set[str]:
    entries = read_folder(model).items()
    return {n.split(".")[-2] for n, e in entries if ".layers." in n and len(e.shape) == 2}


def _sglang(model: Path, seat: Seat, options: list[str]) -> list[str]:
    grammar = "llguidance" if _has_decoder(model) else "none"
    options = [
        *options,
        f"--model-path={model}",
        "--weight-version=0",
        "--log-level=warning",
        f"--grammar-backend={grammar}",
    ]
    if not seat.cards:
        lora_cpu = ["--lora-backend=torch_native"] * ("--enable-lora" in options)
        return [str(_CPU_LAUNCHER), *options, *SGLANG_CPU, *lora_cpu]
    options += [f"--tp={len(seat.cards)}", "--enable-metrics"]
    return ["-c", _SGLANG, str(seat.memory), *options]


def _has_decoder(model: Path) -> bool:
    """Whether a tokenizer says how its tokens are written: that of tiny models has words, which no grammar of SGLang takes."""
    tokenizer = model / "tokenizer.json"
    return not tokenizer.is_file() or json.loads(tokenizer.read_text()).get("decoder") is not None


def _vllm(model: Path, seat: Seat, lora: list[str], *, colocate: bool) -> list[str]:
    options = [*VLLM, *lora, *["--max-loras=2", "--max-cpu-loras=4"] * bool(lora)]
    options += ["--enable-sleep-mode"] * colocate
    if not seat.cards:
        return [*options, *vllm_cpu(model)]
    return [
        *options,
        f"--tensor-parallel-size={len(seat.cards)}",
        f"--gpu-memory-utilization={seat.memory}",
    ]


def vllm_cpu(model: Path) -> list[str]:
    """Return vLLM's options without a card: whole prompts at a time, as one in parts whose request has a seed ends it there."""
    whole = ["--no-enable-chunked-prefill", f"--max-num-batched-tokens={_shape(model).longest}"]
    return ["--dtype=float32", "--enforce-eager", *whole]


def _demand_for_cpu(model: Path, role: Role, *, loads: bool) -> None:
    """Raise ConfigError for a model with which vLLM ends on a CPU, or whose versions it would serve with the old output layer."""
    size, instead = _shape(model).head_dim, "expected --engine sglang or local, a GPU"
    if size not in _VLLM_CPU_HEADS:
        raise ConfigError(
            f"models.{role}.path: {model} has heads of {size} numbers, and vLLM on a CPU ends with others than "
            f"{', '.join(map(str, _VLLM_CPU_HEADS))}; {instead}, or another model"
        )
    if loads and ties_embeddings(read_json(model / "config.json")):
        raise ConfigError(
            f"models.{role}.path: {model} has tie_word_embeddings = true, and vLLM on a CPU keeps the output layer that such a "
            f"model began with; {instead}, an adapter (trainer.*.lora_rank), or tie_word_embeddings = false with a lm_head.weight "
            "of its own"
        )


def _shape(model: Path) -> ModelShape:
    return ModelShape.of_config(read_json(model / "config.json"), str(model))
