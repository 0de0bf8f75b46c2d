"""`python -m demo.models tiny-model | tiny-policy | smollm2`: model folders for first runs, tests and the demo."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path

from demo.models.smollm2 import smollm2_folder
from demo.models.tiny_models import TinyShape, build_tiny_model, words_of
from demo.models.tiny_policy import write_solutions
from services.trainer.learner.supervised import SupervisedJob, SupervisedOptions, read_items
from triforge.environments.kit import Beginner
from triforge.environments.registry import family
from triforge.errors import InputError, TriforgeError
from triforge.rendering import Renderer
from triforge.telemetry import begin

# Of a tiny policy. Few conversations are soon known by heart, and what is certain of itself learns nothing more: the best update on others is kept.
_IMITATION = SupervisedOptions(steps=400, eval_share=0.125, eval_every=20)
_PROGRESS_EVERY = 200  # updates


def main(arguments: Sequence[str]) -> int:
    """Run one command and return the exit status.

    Errors of triforge end as one sentence on standard error and status 1.
    """
    args = _parser().parse_args(arguments)
    begin("demo", "models")
    try:
        args.run(args)
    except TriforgeError as error:
        print(f"{error.kind}: {error.detail}", file=sys.stderr)  # noqa: T201 (a command's output)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m demo.models")
    commands = parser.add_subparsers(required=True)
    out = argparse.ArgumentParser(add_help=False)
    out.add_argument("--out", type=Path, required=True, help="model folder to write")
    out.add_argument("--replace", action="store_true", help="overwrite a folder that exists")

    tiny = commands.add_parser(
        "tiny-model", parents=[out], help="write a tiny Llama with a word-level tokenizer"
    )
    tiny.add_argument(
        "--words", type=Path, required=True, help="text whose words are the vocabulary"
    )
    tiny.add_argument("--hidden", type=int, default=64)
    tiny.add_argument("--layers", type=int, default=2)
    tiny.add_argument("--heads", type=int, default=4)
    tiny.add_argument("--max-positions", type=int, default=1024)
    tiny.add_argument("--seed", type=int, default=0)
    tiny.set_defaults(run=_tiny_model)

    policy = commands.add_parser(
        "tiny-policy", parents=[out], help="a tiny model that imitates a family's own solutions"
    )
    policy.add_argument("--env", required=True, help="environment family")
    policy.add_argument("--generate", type=json.loads, default={}, help="of the generator, JSON")
    policy.add_argument("--options", type=json.loads, default={}, help="of the play, JSON")
    policy.set_defaults(run=_tiny_policy)

    small = commands.add_parser("smollm2", help="SmolLM2-135M-Instruct as a model folder")
    small.add_argument("--cache", type=Path, help="where it is kept; the user's cache without")
    small.set_defaults(run=lambda args: sys.stdout.write(f"{smollm2_folder(args.cache)}\n"))
    return parser


def _tiny_model(args: argparse.Namespace) -> None:
    try:
        words = words_of([args.words.read_text(encoding="utf-8")])
    except OSError as error:
        raise InputError(f"--words {args.words}: cannot be read: {error}") from error
    shape = TinyShape(
        hidden=args.hidden, layers=args.layers, heads=args.heads, max_positions=args.max_positions
    )
    build_tiny_model(args.out, words, shape=shape, seed=args.seed, replace=args.replace)


def _tiny_policy(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        _print(f"playing tasks of {args.env}")
        solved = write_solutions(folder, args.env, generate=args.generate, options=args.options)
        words = words_of([(folder / "words.txt").read_text(encoding="utf-8")])
        shape = TinyShape(max_positions=8192)
        if not solved:
            build_tiny_model(args.out, words, shape=shape, replace=args.replace)
            _print(
                f"nothing to imitate: its weights are random and learn nothing, because {args.env} has no `solution` and lists no "
                "admissible actions; give the family one of them (docs/extend.md), or name another model"
            )
            return
        blank = build_tiny_model(folder / "blank", words, shape=shape)
        items = read_items(folder / "chats.jsonl", Renderer.from_folder(blank), max_tokens=8192)
        beginner: Beginner | None = getattr(family(args.env), "beginner", None)
        options = SupervisedOptions(steps=beginner.updates) if beginner else _IMITATION
        _print(f"imitating {solved} conversations in at most {options.steps} updates")
        job = SupervisedJob(blank, items, options)
        measured = job.run(args.out, replace=args.replace, progress=_progress)["eval"]
        if measured and not beginner:
            step, loss, _ = min(measured, key=itemgetter(1))
            _print(f"kept update {step}, loss {loss:.3f} on other conversations")


def _progress(step: int, loss: float) -> None:
    if step % _PROGRESS_EVERY == 0:
        _print(f"update {step}, loss {loss:.3f}")


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
