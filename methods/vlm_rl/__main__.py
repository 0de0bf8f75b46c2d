"""`python -m methods.vlm_rl --model-path FOLDER`: serve a CLIP model for `encoder = "service"`."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

from triforge.errors import TriforgeError
from triforge.telemetry import begin


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m methods.vlm_rl", description=__doc__)
    add = parser.add_argument
    add("--model-path", required=True, type=Path, help="a CLIP folder of transformers")
    add("--device", default="auto", help="cpu, cuda, cuda:1, ...; auto: cuda if there is one")
    add("--dtype", default="auto", choices=("auto", "float32", "bfloat16"))
    add("--host", default="127.0.0.1")
    add("--port", default=30100, type=int)
    add("--api-key", default=os.environ.get("LOCAL_ENGINE_API_KEY"))
    add("--threads", default=1, type=int, help="torch threads")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Load the model, then serve until a signal arrives; return the exit code."""
    options = _parser().parse_args(arguments)
    begin("encoder")
    import torch
    import uvicorn

    from methods.vlm_rl.clip import ClipModel, routes
    from services.local_engine.app import guarded
    from services.local_engine.model import place
    from triforge.web.server import config_of

    torch.set_num_threads(options.threads)
    try:
        device, dtype = place(options.device, options.dtype)
        model = ClipModel(options.model_path, device=device, dtype=dtype)
    except TriforgeError as error:
        logging.getLogger(__name__).error("%s", error.detail)
        return 2
    served = routes(model, options.model_path.name)
    app = guarded(served, host=options.host, api_key=options.api_key or None)
    uvicorn.Server(config_of(app, options.host, options.port)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
