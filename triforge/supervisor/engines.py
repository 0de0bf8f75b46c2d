"""The engines that a deployment starts: which program, of which version, with which options."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from triforge.config import RunConfig, Settings
from triforge.config.machine import EngineName
from triforge.errors import ConfigError
from triforge.supervisor.placement import Seat
from triforge.supervisor.process import ProcessSpec
from triforge.types import Role

VERSIONS: Final[Mapping[str, str]] = {"sglang": "0.5.23", "vllm": "0.32.0"}
_ROOT = Path(__file__).parents[2]
_CPU_LAUNCHER = (
    _ROOT / "scripts" / "real_sglang" / "launch_cpu.py"
)  # what SGLang's wheels need without a card
_START_S = 1800.0  # a large model is read and its kernels are compiled
# Plain PyTorch kernels, the learner's precision, and a cache whose size does not follow from the machine's memory.
_SGLANG_CPU = (
    "--device", "cpu", "--dtype", "float32", "--attention-backend", "torch_native", "--sampling-backend", "pytorch",
    "--disable-cuda-graph", "--disable-overlap-schedule", "--mem-fraction-static", "0.3", "--max-total-tokens", "32768",
    "--max-running-requests", "16", "--skip-server-warmup", "--sleep-on-idle",
)  # fmt: skip

_VLLM_ENV = {
    "VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1",
}  # fmt: skip


def interpreter(engine: EngineName, settings: Settings) -> Path:
    """Return the interpreter that has SGLang or vLLM in the version that this triforge was tried with; else ConfigError."""
    given = settings.engine_python or _ROOT / f".venv-{engine}" / "bin" / "python"
    python, wanted = Path(given).absolute(), VERSIONS[engine]
    ask = f"from importlib.metadata import version; print(version({engine!r}))"
    try:
        command = [python, "-c", ask]
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
    model = (getattr(config.models, role).path, "--served-model-name", role, "--port", str(port))
    keys = {"API_KEY": settings.api_key, "ADMIN_API_KEY": settings.admin_api_key}
    given = {key: secret.get_secret_value() for key, secret in keys.items() if secret.get_secret_value()}  # fmt: skip
    if engine == "local":
        command = (
            sys.executable, "-m", "services.local_engine", "--model-path", *model, "--weight-version", "0",
            "--log-level", "warning",
        )  # fmt: skip
        own = {
            **env,
            **{f"LOCAL_ENGINE_{key}": secret for key, secret in given.items()},
            **seat.env,
        }
        return ProcessSpec(name=name, command=command, env=own, ready_url=f"{url}/ready"), url
    python, rank = interpreter(engine, settings), _lora_rank(config, role)
    shared = {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **seat.env,
    }
    if engine == "sglang":
        command = (
            str(python),
            *_sglang(seat, rank, colocate=config.run.colocate),
            "--model-path",
            *model,
        )
        ready = f"{url}/ready"
    else:
        given.pop("ADMIN_API_KEY", None)
        command = (
            str(python.parent / "vllm"),
            "serve",
            *model,
            "--host",
            "127.0.0.1",
            *_vllm(seat, rank, colocate=config.run.colocate),
        )
        shared, ready, url = shared | _VLLM_ENV, f"{url}/health", f"vllm+{url}"
    for key, secret in given.items():
        command += (f"--{key.lower().replace('_', '-')}", secret)
    return ProcessSpec(
        name=name, command=command, env=shared, ready_url=ready, start_s=_START_S
    ), url


def _lora_rank(config: RunConfig, role: Role) -> int:
    """Return the largest rank of the adapters that the engines of a role serve; 0 if they serve whole models."""
    served = (r for r in config.trained if role in (r, getattr(config.models, r).engines_of))
    return max((config.learner(r).lora_rank for r in served), default=0)


def _sglang(seat: Seat, lora_rank: int, *, colocate: bool) -> tuple[str, ...]:
    options: tuple[str, ...] = (
        "--weight-version",
        "0",
        "--grammar-backend",
        "llguidance",
        "--log-level",
        "warning",
    )
    if lora_rank:
        options += (
            "--enable-lora",
            "--max-lora-rank",
            str(lora_rank),
            "--max-loras-per-batch",
            "4",
        )
    if colocate:
        options += ("--enable-memory-saver",)
    if not seat.cards:
        return (str(_CPU_LAUNCHER), *options, *_SGLANG_CPU)
    tensor_parallel = str(len(seat.cards))
    return (
        "-m", "sglang.launch_server", *options, "--tp", tensor_parallel, "--mem-fraction-static", str(seat.memory), "--enable-metrics",
    )  # fmt: skip


def _vllm(seat: Seat, lora_rank: int, *, colocate: bool) -> tuple[str, ...]:
    options: tuple[str, ...] = (
        "--enable-scale-out", "--logprobs-mode", "processed_logprobs", "--return-tokens-as-token-ids",
        "--enable-prompt-tokens-details",
    )  # fmt: skip
    if lora_rank:
        options += (
            "--enable-lora",
            "--max-lora-rank",
            str(lora_rank),
            "--max-loras",
            "2",
            "--max-cpu-loras",
            "4",
        )
    if colocate:
        options += ("--enable-sleep-mode",)
    if not seat.cards:
        return (*options, "--dtype", "float32", "--enforce-eager")
    return (
        *options,
        "--tensor-parallel-size",
        str(len(seat.cards)),
        "--gpu-memory-utilization",
        str(seat.memory),
    )
