"""`triforge ab`: train with several settings on the same seeds, and report which settings differ."""

from __future__ import annotations

import inspect
import json
import math
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer import Option

from triforge.algorithms.paired import Difference, against_first, count_to_tell, mean
from triforge.cli.deployment import start_command
from triforge.cli.figures import MODES
from triforge.cli.terminal import console, grid, markdown, say
from triforge.cli.train import train, train_command
from triforge.cli.training import Training
from triforge.cli.watch import status_text
from triforge.config import merge, read_document, with_assignments
from triforge.environments.rows import object_of
from triforge.errors import ConfigError, ConflictError, InputError

_FILE: Final = "ab.json"
_NOT_SHARED: Final = {"pool", "seed", "resume", "state"}  # options of `train`
_READING: Final = """\
± is half of a 95 % interval (Student's t over seeds; ? with one seed). Differences are paired: a seed has the same tasks in all
arms. p is of a two-sided t test, after Holm's correction for the number of differences; `better` and `worse` have p below 0.05.
`Undecided` does not mean equal.
"""
_FEW: Final = 3  # seeds below which an interval says nothing

Results = Mapping[tuple[str, int], Mapping[str, Any]]


def with_options_of_train(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `triforge train` that it has not itself, as `given`."""
    own, of_train = (
        inspect.signature(one, eval_str=True).parameters for one in (command, train_command)
    )
    shared = [one for name, one in of_train.items() if name not in {*own, *_NOT_SHARED}]
    parameters = [*(one for name, one in own.items() if name != "given"), *shared]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


@with_options_of_train
def ab(
    arm: Annotated[
        list[str],
        Option(help="NAME, or NAME:section.field=value, more fields behind blanks. Repeatable."),
    ],
    seeds: Annotated[int, Option(min=1, help="Runs of each arm, with seeds 1 to N.")] = 6,
    state: Annotated[Path, Option(help="Folder of all runs, results and the page.")] = Path(
        "var/ab"
    ),
    **given: Any,
) -> None:
    """Train with several settings on the same seeds, one run after the other, and report which settings differ.

    Arms are compared with the first one. --set holds in all of them; an arm's own fields win. The same command goes on where
    it was stopped.
    """
    compare(_arms(arm, given), seeds, state)


def compare(
    arms: Mapping[str, dict[str, Any]], seeds: int, state: Path
) -> tuple[Results, dict[str, Difference]]:
    """Train arms on seeds as far as they are not on file, print and write their tables, and return results and differences from the first.

    Args:
        arms: the arguments of `train` by arm.
    """
    comparison = _Comparison(state, arms)
    jobs = [(name, seed) for seed in range(1, seeds + 1) for name in comparison.arms]
    if any(job not in comparison.results for job in jobs):
        for arguments in comparison.arms.values():  # all are checked before the first run
            Training(**arguments, state=state).for_beginners().document(say)
    while left := [job for job in jobs if job not in comparison.results]:
        comparison.say_cost(len(jobs), len(left))
        comparison.play(*left[0])
    results = {job: comparison.results[job] for job in jobs}
    differences = against_first({arm: ends_of(results, arm) for arm in arms})
    page = _page(results, comparison.arms, differences)
    command = shlex.join(["triforge", *sys.argv[1:]])
    (state / "ab.md").write_text(f"{page}\nMade by `{command}`.\n", encoding="utf-8")
    say(f"page: {state / 'ab.md'}")
    if command := start_command(state):
        say(f"to look at the runs: {command}")
    return results, differences


def arguments_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `train` that all arms share."""
    if not (given["model"] or given["config"]):
        raise typer.BadParameter("given nothing, expected a model", param_hint="--model")
    if not given["env"]:
        raise typer.BadParameter("given nothing, expected a family", param_hint="--env")
    shared = {name: value for name, value in given.items() if name != "set_"}
    shared |= {name: object_of(given[name], f"--{name}") for name in ("generate", "options")}
    data, reward = shared.pop("data"), shared.pop("reward")
    shared["generate"] |= {"data": str(data.resolve())} if data else {}
    shared["options"] |= {"reward": reward} if reward else {}
    return shared


def _arms(texts: Sequence[str], given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the arguments of `train` by arm."""
    shared = arguments_of(given)
    arms: dict[str, dict[str, Any]] = {}
    for text in texts:
        name, _, fields = text.partition(":")
        overrides = with_assignments({}, [*(given["set_"] or ()), *shlex.split(fields)])
        if not name or name in arms:
            raise InputError(f"--arm: given {text!r}, expected a name that no other arm has")
        if "seed" in overrides.get("run", {}):
            raise InputError(f"--arm {name}: given run.seed, which --seeds sets: leave it out")
        arms[name] = {**shared, "overrides": overrides}
    if len(arms) < 2:
        raise InputError(f"--arm: given {len(arms)}, expected two at least: --arm base --arm NAME:section.field=value")  # fmt: skip
    return arms


class _Comparison:
    """The arms, and the results of finished runs, kept in a file."""

    def __init__(self, state: Path, arms: Mapping[str, dict[str, Any]]) -> None:
        self.arms, self._state = arms, state
        file = state / _FILE
        record = json.loads(file.read_text()) if file.is_file() else {"arms": {}, "runs": []}
        self._begun: dict[str, Any] = record["arms"]
        self.results = {(run["arm"], run["seed"]): run for run in record["runs"]}
        for name, arguments in arms.items():
            config = arguments["config"]
            kept = {**arguments, "config": read_document(config) if config else {}}
            new = json.loads(json.dumps(kept, default=str))
            old = self._begun.setdefault(name, new)
            if changed := [key for key in new if old.get(key) != new[key]]:
                changes = "; ".join(
                    f"{key} from {old.get(key)!r} to {new[key]!r}" for key in changed
                )
                raise ConfigError(
                    f"--arm {name}: its runs in {state} have other options, changed were {changes}; give the arm another name, or "
                    "name another folder with --state"
                )

    def play(self, arm: str, seed: int) -> None:
        """Begin a run or go on with it, and keep its result.

        Raises:
            ConflictError: the run has failed or was stopped.
        """
        self._write()
        given, name = self.arms[arm], f"{arm}, seed {seed}"
        seeded = {"name": name, "overrides": merge(given["overrides"], {"run": {"seed": seed}})}
        say(f"--- {name}")
        started = time.monotonic()
        trained = train(**given | seeded, again=True, state=self._state, console=console)
        run = trained.run
        if run.status != "finished":
            raise ConflictError(
                f"run {run.id} ({name}): {status_text(run.status, run.reason)}; the same command goes on with it"
            )
        self.results[arm, seed] = {
            "arm": arm, "seed": seed, "run": run.id, "seconds": time.monotonic() - started,
            "before": trained.before, "after": trained.after, "config": run.config,
        }  # fmt: skip
        self._write()

    def _write(self) -> None:
        self._state.mkdir(parents=True, exist_ok=True)
        aside = self._state / f"{_FILE}.part"
        record = {"arms": self._begun, "runs": [*self.results.values()]}
        aside.write_text(json.dumps(record, indent=1))
        aside.replace(self._state / _FILE)

    def say_cost(self, runs: int, left: int) -> None:
        """Print how long the runs that are left will take."""
        cost = "; the first one shows how long they take"
        if self.results:
            one = sum(run["seconds"] for run in self.results.values()) / len(self.results)
            cost = f", about {left * one / 60:.1f} minutes ({one:.0f} s a run)"
        say(f"{left} of {runs} runs are left{cost}")


def _page(
    results: Results,
    given: Mapping[str, Mapping[str, Any]],
    differences: Mapping[str, Difference],
) -> str:
    """Print the tables of the comparison of these arms, and return them as Markdown."""
    arms = [*given]
    pairs = [
        [name, one.mean.text(sign=True), f"{one.p:.2g}", one.word]
        for name, one in differences.items()
    ]
    rows = []
    for mode in MODES:
        for arm in arms:
            before, after = (_values(results, arm, when, mode) for when in ("before", "after"))
            change = [after[seed] - before[seed] for seed in after if seed in before]
            cells = [_cell([*before.values()]), _cell([*after.values()]), _cell(change, sign=True)]
            seconds = "" if mode != MODES[0] else f"{seconds_of(results, arm):.0f}"
            rows.append([f"{arm}, {mode}", *cells, seconds])
    each = [
        [str(seed), *(f"{ends_of(results, arm).get(seed, math.nan):.3f} {results[arm, seed]['run']}" for arm in arms)]
        for seed in dict.fromkeys(seed for _, seed in results)
    ]  # fmt: skip
    tables = (
        (["option", *arms], _options(results, given)),
        ([f"against {arms[0]}", f"held out, {MODES[0]}", "p", "verdict"], pairs),
        (["arm", "before", "after", "change", "s a run"], rows),
        (["seed", *arms], each),
    )
    for titles, lines in tables:
        table = grid(*titles)
        for row in lines:
            table.add_row(*(cell.partition(" ± ")[0] if len(each) < _FEW else cell for cell in row))
        if lines:
            console.print(table)
    advice = [_advice(name, one) for name, one in differences.items() if one.word == "undecided"]
    for line in advice:
        say(line)
    text = "\n".join(markdown(*table) for table in tables if table[1])
    notes = "".join(f"{line}\n" for line in advice)
    return f"# {', '.join(arms[1:])} against {arms[0]}\n\n{text}\n{_READING}{notes}"


def _options(results: Results, arms: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Return the options in which the arms differ, with the values that their runs had."""
    configs = [
        next(_flat(run.get("config", {})) for (name, _), run in results.items() if name == arm)
        for arm in arms
    ]
    named = dict.fromkeys(name for arm in arms.values() for name in _flat(arm["overrides"]))
    rows = [[name, *(config.get(name, "-") for config in configs)] for name in named]
    return [row for row in rows if len({*row[1:]}) > 1]


def _flat(document: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """Return the values of a document by their names with dots."""
    found: dict[str, str] = {}
    for name, value in document.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{before}{name}.")
        else:
            found[before + name] = f"{value:g}" if isinstance(value, float) else str(value)
    return found


def _advice(arm: str, one: Difference) -> str:
    """Say how many seeds would decide about an arm, if its difference and spread stay as they are."""
    count = count_to_tell(one.mean)
    if count is not None:
        return f"{arm}: the same command with --seeds {count} would tell, if difference and spread stay as they are"
    if one.mean.count == 1:
        return f"{arm}: one seed tells nothing; the same command with --seeds 6 goes on"
    return f"{arm}: the difference is so small that not even 99 seeds like these would tell"


def _values(results: Results, arm: str, when: str, mode: str) -> dict[int, float]:
    """Return held-out success by seed, or the mean score where there is none."""
    found = {
        seed: result[when].get(mode, {}) for (name, seed), result in results.items() if name == arm
    }
    values = {
        seed: row.get("score") if row.get("success") is None else row["success"]
        for seed, row in found.items()
    }
    return {seed: value for seed, value in values.items() if value is not None}


def ends_of(results: Results, arm: str) -> dict[int, float]:
    """Return held-out success (or the mean score) of an arm at the end by seed, sampled."""
    return _values(results, arm, "after", MODES[0])


def seconds_of(results: Results, arm: str) -> float:
    """Return the mean time of an arm's runs."""
    found: list[float] = [run["seconds"] for (name, _), run in results.items() if name == arm]
    return sum(found) / len(found)


def _cell(values: Sequence[float], *, sign: bool = False) -> str:
    return mean(values).text(sign=sign) if values else "-"
