"""SGLang's own server on a machine without a GPU: `python launch_cpu.py <options of sglang.launch_server>`.

Run by the Python that SGLang is installed in. SGLang spawns its scheduler and detokenizer, and a spawned child runs the
main script's module level again: what is prepared there holds in every process, which `python -m sglang.launch_server`
could not give. No file of SGLang is changed; README.md says why each step is needed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
sys.path.insert(0, str(Path(__file__).parent / "stand_ins"))  # has sgl_kernel

import torch
from torch import library

# PyPI's torchvision is linked against CUDA. On a CPU torch its library does not load, and importing it then fails at
# these two operators; their declaration is enough, because text models never call them.
_TORCHVISION: Any = library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
for _name in ("nms", "qnms"):
    _TORCHVISION.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def _pageable(make: Any) -> Any:
    """Return a maker of tensors that pins no memory, which a CPU build of torch cannot; SGLang's adapters ask for it."""
    return lambda *given, pin_memory=False, **options: make(*given, **options)  # noqa: ARG005


for _name in ("empty", "zeros", "tensor"):
    setattr(torch, _name, _pageable(getattr(torch, _name)))
torch.Tensor.pin_memory = lambda tensor, *_: tensor  # type: ignore[method-assign]


def main(arguments: list[str]) -> None:
    """Serve until a signal arrives. The imports stand here because a spawned child has no use for them."""
    from sglang.launch_server import run_server  # noqa: PLC0415
    from sglang.srt.plugins import load_plugins  # noqa: PLC0415
    from sglang.srt.server_args import prepare_server_args  # noqa: PLC0415
    from sglang.srt.utils import kill_process_tree  # noqa: PLC0415

    load_plugins()
    options = prepare_server_args(arguments)
    try:
        run_server(options)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    given = [(name, os.environ.get(f"ENGINE_{name}")) for name in ("API_KEY", "ADMIN_API_KEY")]
    keys = [f"--{name.lower().replace('_', '-')}={key}" for name, key in given if key]
    main([*sys.argv[1:], *keys])
