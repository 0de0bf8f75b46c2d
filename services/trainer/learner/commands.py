"""Commands that write model folders: `supervised` and `merge-lora`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from services.trainer.learner.model.lora import merge
from services.trainer.learner.supervised import SupervisedJob, SupervisedOptions, read_items
from triforge.errors import TriforgeError
from triforge.rendering import Renderer
from triforge.telemetry import begin


def run(command: str, arguments: Sequence[str]) -> int:
    """Run `supervised` or `merge-lora`; return the exit status.

    Errors of triforge end as one sentence on standard error and status 1.
    """
    args = _parser().parse_args([command, *arguments])
    begin("trainer", command)
    try:
        args.run(args)
    except TriforgeError as error:
        print(f"{error.kind}: {error.detail}", file=sys.stderr)  # noqa: T201 (a command's output)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m services.trainer")
    commands = parser.add_subparsers(required=True)
    out = argparse.ArgumentParser(add_help=False)
    out.add_argument("--out", type=Path, required=True, help="model folder to write")
    out.add_argument("--replace", action="store_true", help="overwrite a folder that exists")

    job = commands.add_parser(
        "supervised", parents=[out], help="train a model folder on conversations (JSONL)"
    )
    job.add_argument("--model", type=Path, required=True, help="model folder to start from")
    job.add_argument("--data", type=Path, required=True, help="JSON lines with messages")
    job.add_argument("--report", type=Path, help="where the report goes; standard output without")
    for option in fields(SupervisedOptions):
        name, value = option.name.replace("_", "-"), option.default
        job.add_argument(f"--{name}", type=type(value), default=value)
    job.set_defaults(run=_supervised)

    merged = commands.add_parser(
        "merge-lora", parents=[out], help="add an adapter to its base: a whole model"
    )
    merged.add_argument("--adapter", type=Path, required=True, help="folder of the adapter")
    merged.add_argument("--base", type=Path, help="model below; the one that the adapter names")
    merged.set_defaults(run=_merge)
    return parser


def _supervised(args: argparse.Namespace) -> None:
    options = SupervisedOptions(
        **{o.name: getattr(args, o.name) for o in fields(SupervisedOptions)}
    )
    renderer = Renderer.from_folder(args.model)
    config = json.loads((args.model / "config.json").read_text())
    longest = int(config.get("max_position_embeddings", 2048))
    items = read_items(args.data, renderer, max_tokens=longest)
    report = SupervisedJob(args.model, items, options).run(args.out, replace=args.replace)
    text = json.dumps(report, indent=1) + "\n"
    if args.report is None:
        sys.stdout.write(text)
    else:
        args.report.write_text(text)


def _merge(args: argparse.Namespace) -> None:
    sys.stdout.write(f"{merge(args.adapter, args.out, base=args.base, replace=args.replace)}\n")
