"""The engines that a deployment starts: which program, of which version, with which options."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from triforge.config import RunConfig, Settings
from triforge.config.sections import EngineName
from triforge.errors import ConfigError
from triforge.supervisor.placement import Seat
from triforge.supervisor.process import ProcessSpec
from triforge.types import Role

VERSIONS: Final[Mapping[str, str]] = {"sglang": "0.5.23", "vllm": "0.32.0"}
_ROOT = Path(__file__).parents[2]
# What SGLang's wheels need without a card; only a checkout of triforge has it.
_CPU_LAUNCHER = _ROOT / "scripts" / "real_sglang" / "launch_cpu.py"
_START_S = 1800.0  # a large model is read and its kernels are compiled
# Plain PyTorch kernels, the learner's precision, and a cache whose size does not follow from the machine's memory.
_SGLANG_CPU = (
    "--device=cpu", "--dtype=float32", "--attention-backend=torch_native", "--sampling-backend=pytorch", "--disable-cuda-graph",
    "--disable-overlap-schedule", "--mem-fraction-static=0.3", "--max-total-tokens=32768", "--max-running-requests=16",
    "--skip-server-warmup", "--sleep-on-idle",
)  # fmt: skip
_SGLANG = """
import os, runpy, sys
for name in ("api-key", "admin-api-key"):
    if key := os.environ.get("ENGINE_" + name.upper().replace("-", "_")):
        sys.argv.append(f"--{name}={key}")
runpy.run_module("sglang.launch_server", run_name="__main__")
"""
_KEYS = {"local": "LOCAL_ENGINE", "sglang": "ENGINE", "vllm": "VLLM"}  # prefixes of the variables
_VLLM = (  # what the client needs
    "--enable-scale-out", "--logprobs-mode=processed_logprobs", "--return-tokens-as-token-ids", "--enable-prompt-tokens-details",
)  # fmt: skip
_VLLM_ENV = {
    "VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1",
}  # fmt: skip
_ENV = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


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
    python, rank = interpreter(engine, settings), _lora_rank(config, role)
    own, ready, address = {**_ENV, **secret, **seat.env}, f"{url}/ready", url
    if engine == "sglang":
        program = [str(python), *_sglang(model, seat, rank, colocate=config.run.colocate)]
    else:
        vllm = [str(python.parent / "vllm"), "serve", str(model)]
        program = [*vllm, *_vllm(seat, rank, colocate=config.run.colocate)]
        own, ready, address = own | _VLLM_ENV, f"{url}/health", f"vllm+{url}"
    command = (*program, "--host=127.0.0.1", *served)
    spec = ProcessSpec(
        name=name, command=command, env=own, ready_url=ready, first=not seat.alone, start_s=_START_S
    )
    return spec, address


def _lora_rank(config: RunConfig, role: Role) -> int:
    """Return the largest rank of the adapters that the engines of a role serve; 0 if they serve whole models."""
    served = (r for r in config.trained if role in (r, getattr(config.models, r).engines_of))
    return max((config.learner(r).lora_rank for r in served), default=0)


def _sglang(model: Path, seat: Seat, lora_rank: int, *, colocate: bool) -> list[str]:
    grammar = "llguidance" if _has_decoder(model) else "none"
    options = [
        f"--model-path={model}",
        "--weight-version=0",
        "--log-level=warning",
        f"--grammar-backend={grammar}",
    ]
    if lora_rank:
        options += ["--enable-lora", f"--max-lora-rank={lora_rank}", "--max-loras-per-batch=4"]
    options += ["--enable-memory-saver"] * colocate
    if not seat.cards:
        return [str(_CPU_LAUNCHER), *options, *_SGLANG_CPU]
    options += [
        f"--tp={len(seat.cards)}",
        f"--mem-fraction-static={seat.of_free}",
        "--enable-metrics",
    ]
    return ["-c", _SGLANG, *options]


def _has_decoder(model: Path) -> bool:
    """Whether a tokenizer says how its tokens are written: that of tiny models has words, which no grammar of SGLang takes."""
    tokenizer = model / "tokenizer.json"
    return not tokenizer.is_file() or json.loads(tokenizer.read_text()).get("decoder") is not None


def _vllm(seat: Seat, lora_rank: int, *, colocate: bool) -> list[str]:
    options = [*_VLLM, *["--enable-sleep-mode"] * colocate]
    if lora_rank:
        options += [
            "--enable-lora",
            f"--max-lora-rank={lora_rank}",
            "--max-loras=2",
            "--max-cpu-loras=4",
        ]
    if not seat.cards:
        return [*options, "--dtype=float32", "--enforce-eager"]
    return [
        *options,
        f"--tensor-parallel-size={len(seat.cards)}",
        f"--gpu-memory-utilization={seat.memory}",
    ]
