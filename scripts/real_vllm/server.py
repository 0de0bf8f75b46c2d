"""vLLM as the trial of a real engine starts it: in an environment of its own, as a child process."""

from __future__ import annotations

from pathlib import Path

from scripts.real_sglang import install
from scripts.real_sglang.install import Install
from scripts.real_sglang.server import API_KEY
from triforge.supervisor.ports import free_port
from triforge.supervisor.process import ProcessSpec

_HERE = Path(__file__).parent

# What the client needs (`services/policy/engines/vllm.py`), and what the contract asks of an engine that has LoRA.
_OPTIONS = (
    "--enable-scale-out", "--logprobs-mode", "processed_logprobs", "--return-tokens-as-token-ids",
    "--enable-prompt-tokens-details", "--enable-lora", "--max-lora-rank", "8", "--max-loras", "2", "--max-cpu-loras", "4",
    "--lora-target-modules", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
)  # fmt: skip
# float32, because the contract compares log-probabilities closely; with a GPU, room for two servers on one device.
_GPU_OPTIONS = ("--dtype", "float32", "--gpu-memory-utilization", "0.3")
# Whole prompts at a time: without a GPU vLLM ends at a prompt in parts whose request has a seed.
_CPU_OPTIONS = (
    "--dtype", "float32", "--enforce-eager", "--no-enable-chunked-prefill", "--max-num-batched-tokens", "8192",
)  # fmt: skip


def ensure() -> Install:
    """Return the environment. The wheel for CPUs has another name than vLLM looks for itself by."""
    found = install.ensure("vllm", _HERE)
    if not found.gpu:
        library = next((found.python.parents[1] / "lib").glob("python*/site-packages"))
        about = library / f"vllm-{found.version}+cpu.dist-info" / "METADATA"
        about.parent.mkdir(exist_ok=True)
        about.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {found.version}+cpu\n")
    return found


def spec(found: Install, model: Path, name: str) -> ProcessSpec:
    """Return the process of a vLLM server."""
    port = str(free_port())
    return ProcessSpec(
        name=f"vllm-{name}",
        command=(
            str(found.python.parent / "vllm"), "serve", str(model), "--served-model-name", name, "--host", "127.0.0.1",
            "--port", port, "--api-key", API_KEY, *_OPTIONS, *(_GPU_OPTIONS if found.gpu else _CPU_OPTIONS),
        ),
        env={
            "VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false",
        },
        ready_url=f"http://127.0.0.1:{port}/health",
    )  # fmt: skip
