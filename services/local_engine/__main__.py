"""Start the local engine: `python -m services.local_engine --model-path FOLDER`."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from pathlib import Path

from triforge.errors import TriforgeError
from triforge.telemetry import begin

_DRAIN_S = 10  # for running requests at the end


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m services.local_engine",
        description="Serve a causal language model over SGLang's HTTP API, on a CPU or one GPU.",
    )
    add = parser.add_argument
    add("--model-path", required=True, type=Path, help="folder with config.json and safetensors")
    given, types = os.environ.get, ("auto", "float32", "bfloat16")
    add(
        "--device",
        default=given("LOCAL_ENGINE_DEVICE", "auto"),
        help="cpu, cuda, cuda:1, ...; auto: cuda where there is one",
    )
    add(
        "--dtype",
        choices=types,
        default=given("LOCAL_ENGINE_DTYPE", "auto"),
        help="auto: bfloat16 on a GPU, else float32",
    )
    add("--host", default="127.0.0.1")
    add("--port", default=30000, type=int)
    add("--served-model-name", default="", help="name in /v1/models (default: the folder)")
    add("--weight-version", default="default", help="version of the weights in the folder")
    add("--max-running-requests", default=64, type=int, help="requests decoded side by side")
    add("--max-total-tokens", default=65536, type=int, help="tokens of all running requests")
    add("--max-prefill-tokens", default=1024, type=int, help="prompt tokens between two steps")
    add("--api-key", default=os.environ.get("LOCAL_ENGINE_API_KEY"))
    add("--admin-api-key", default=os.environ.get("LOCAL_ENGINE_ADMIN_API_KEY"))
    add("--threads", default=1, type=int, help="torch threads; 1 is best on shared cores")
    levels = ("debug", "info", "warning", "error")
    add("--log-level", choices=levels, help="TRIFORGE_LOG_LEVEL, or info, without")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Load the model, then serve until a signal arrives; return the exit code."""
    options = _parser().parse_args(arguments)
    begin("local_engine", options.served_model_name, level=options.log_level or "")
    log = logging.getLogger(__name__)
    config_file = options.model_path / "config.json"
    if not config_file.is_file():  # reported before torch is imported, which takes seconds
        log.error("%s does not exist; expected a model folder", config_file)
        return 2
    import torch
    import uvicorn

    from services.local_engine.app import create_app
    from services.local_engine.detokenize import TextCodec
    from services.local_engine.engine import Engine
    from services.local_engine.model import load_model, place
    from services.local_engine.scheduler import Limits
    from triforge.web.server import config_of

    # The decoding thread holds the interpreter lock between its many short operations; with the default of 5 ms the
    # HTTP thread would wait for several decode steps of a small model.
    sys.setswitchinterval(0.0005)
    torch.set_num_threads(options.threads)
    try:
        device, dtype = place(options.device, options.dtype)
        model, config = load_model(options.model_path, device=device, dtype=dtype)
        codec = TextCodec(options.model_path)
    except TriforgeError as error:
        log.error("%s", error.detail)
        return 2
    engine = Engine(
        model,
        config,
        codec,
        options.model_path,
        limits=Limits(
            max_running=options.max_running_requests,
            max_total_tokens=options.max_total_tokens,
            max_prefill_tokens=options.max_prefill_tokens,
        ),
        version=options.weight_version,
    )
    app = create_app(
        engine=engine,
        served_name=options.served_model_name or options.model_path.name,
        host=options.host,
        api_key=options.api_key or None,
        admin_api_key=options.admin_api_key or None,
    )
    # uvicorn raises the signal again after it has served; by default SIGTERM would lose the last spans
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    engine.start()
    try:
        web = config_of(app, options.host, options.port, timeout_graceful_shutdown=_DRAIN_S)
        uvicorn.Server(web).run()
    finally:
        engine.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
