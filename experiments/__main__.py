"""`make experiment-table1`, `-votes`, `-outgrown`, `-sparse` and `-opd`: every arm on every seed, then the report."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import Any

from demo.settings import ROOT
from demo.warm_start import smollm2
from experiments.jobs import Job, Tell, finished, run_all
from experiments.opd import STUDY as OPD
from experiments.outgrown import BROAD, OUTGROWN
from experiments.report import Page
from experiments.settings import Settings
from experiments.sparse import STUDY as SPARSE
from experiments.study import Study, files_of
from experiments.table1 import STUDY as TABLE1
from experiments.teachers import STUDY as TEACHERS
from experiments.votes import STUDY as VOTES
from triforge.errors import TriforgeError

_MODELS = "models"  # the job that makes the models of a seed

STUDIES = {study.name: study for study in (TABLE1, OUTGROWN, BROAD, VOTES, SPARSE, OPD, TEACHERS)}


def _parser(study: Study) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m experiments {study.name}", description=__doc__
    )
    add = parser.add_argument
    add(
        "--quick",
        action="store_true",
        help="one step an arm, one seed: shows that everything runs, measures nothing",
    )
    add("--seeds", type=int, nargs="+", default=list(study.seeds))
    add("--arms", nargs="+", default=["*"], metavar="ARM", help="names or patterns of arms")
    add("--processes", type=int, default=2, help="runs at a time, one thread each")
    add(
        "--state",
        type=Path,
        default=ROOT / "var" / "experiments",
        help="results; what is on file is not run again",
    )
    add(
        "--docs",
        type=Path,
        default=None,
        help="folder of the report (default: --state, none for --quick)",
    )
    add("--report-only", action="store_true", help="write the report from what is on file")
    add("--one", nargs=2, metavar=("ARM", "SEED"), help=argparse.SUPPRESS)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit status: 1 if a run failed."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] not in STUDIES:
        sys.stderr.write(f"usage: python -m experiments {{{','.join(STUDIES)}}} [options]\n")
        return 2
    study = STUDIES[given[0]]
    options = _parser(study).parse_args(given[1:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no run is left behind
    settings = study.quick if options.quick else study.full
    if options.one:
        return _one(study, Job(options.one[0], int(options.one[1])), settings, options)
    started = time.monotonic()

    def tell(text: str) -> None:
        print(f"[{(time.monotonic() - started) / 60:5.1f} min] {text}", flush=True)

    seeds = [0] if options.quick and options.seeds == list(study.seeds) else options.seeds
    known = list((options.quick and study.smoke) or study.arms)
    arms = [name for name in known if any(fnmatchcase(name, p) for p in options.arms)]
    if not arms:
        tell(f"--arms: given {options.arms}, expected names or patterns of {known}")
        return 2
    fewer = study.further if seeds == list(study.seeds) else {}
    jobs = [Job(arm, seed) for seed in seeds for arm in arms if seed in fewer.get(arm, seeds)]
    failed: list[Path] = []
    docs = options.docs or (None if options.quick else options.state)
    state, only = options.state.resolve(), options.report_only
    files = files_of(state, study, settings, jobs, finished=only)
    try:
        if not only:
            failed = _play(study, files, options, tell)
        if study.compared is None:
            print(import_module(study.report).table(finished(files)))
        elif docs is not None:
            tell(
                f"report: {_report(study, finished(files), settings, seeds, options, docs, given)}"
            )
    except TriforgeError as error:
        tell(f"failed: {error.detail}")
        return 1
    for path in failed:
        tell(f"failed: see {path.with_suffix('.log')}; run the command again to repeat it")
    return 1 if failed else 0


def _play(
    study: Study,
    files: Mapping[Job, Path],
    options: argparse.Namespace,
    tell: Tell,
) -> list[Path]:
    """Play what is not on file, after the models of its seeds are made; returns the files of what failed."""
    if all(path.is_file() for path in files.values()):
        tell("all runs are on file")
        return []
    quick = ["--quick"] if options.quick else []
    state = ["--state", str(options.state.resolve())]
    base = ["-m", "experiments", study.name, *quick, *state, "--one"]

    def run(wanted: Mapping[Job, Path]) -> list[Path]:
        def command(job: Job) -> list[str]:
            return [*base, job.arm, str(job.seed)]

        failed = run_all(wanted, command, processes=options.processes, tell=tell)
        return [wanted[job] for job in failed]

    seeds = dict.fromkeys(job.seed for job, path in files.items() if not path.is_file())
    folder = next(iter(files.values())).parent
    made = {Job(_MODELS, seed): folder / f"{_MODELS}-{seed}.jsonl" for seed in seeds}
    for path in made.values():
        path.unlink(missing_ok=True)  # the cache knows what is made
    if failed := run(made):
        return failed
    if not options.quick and any(study.arms[job.arm].rewrites for job in files):
        smollm2(tell)()
    return run(files)


def _one(study: Study, job: Job, settings: Settings, options: argparse.Namespace) -> int:
    """Play one run in this process and print its lines."""
    if job.arm == _MODELS:
        settings.models(job.seed, lambda text: print(text, file=sys.stderr, flush=True))
        return 0
    arm = study.arms[job.arm]
    import torch

    from experiments.loop import play
    from experiments.record import Models

    torch.set_num_threads(1)
    sys.setswitchinterval(0.0005)  # as the local engine's own process does
    policy, reward = settings.models(job.seed, _silent)
    models = Models(policy, reward, None)
    if arm.rewrites:  # a smoke test does not wait for a download; the tiny policy answers nonsense
        models.rewrites = policy if options.quick else smollm2(_silent)()
    play(job.arm, arm, job.seed, settings, models, tell=_print)
    return 0


def _print(line: Mapping[str, Any]) -> None:
    print(json.dumps(line), flush=True)


def _silent(_: str) -> None:
    return


def _report(
    study: Study,
    wanted: Mapping[tuple[str, int], Mapping[str, Any]],
    settings: Settings,
    seeds: Sequence[int],
    options: argparse.Namespace,
    docs: Path,
    given: list[str],
) -> Path:
    compared = study.compared
    assert compared is not None
    seconds = sum(result["seconds"] for result in wanted.values())
    page = Page(
        seeds=seeds,
        command=f"python -m experiments {' '.join(given)}",
        minutes=seconds / 60 / options.processes,
        machine=f"{options.processes} processes of one thread on {os.cpu_count()} cores, no GPU",
        pictures=compared.draw(wanted, docs),
    )
    text = compared.write(wanted, settings.steps, page)
    path = docs / f"{study.name}.md"
    path.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
    return path


if __name__ == "__main__":
    sys.exit(main())
