"""`triforge judge check`: how often a judge is right on a pool, and whether training with its votes pays."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer import Option

from triforge.algorithms.core import VOTES_TRAIN, CoreOptions
from triforge.algorithms.paired import Difference, mean
from triforge.algorithms.theory import share_interval
from triforge.algorithms.vote_errors import VoteErrors, errors_by_kind
from triforge.cli.ab import (
    Results,
    arguments_of,
    compare,
    ends_of,
    seconds_of,
    with_options_of_train,
)
from triforge.cli.terminal import console, grid, markdown, say
from triforge.cli.train import Trained, train
from triforge.cli.training import Training
from triforge.cli.watch import status_text
from triforge.config import merge, parse, with_assignments
from triforge.errors import ConflictError, InputError

judge_app = typer.Typer(
    no_args_is_help=True, help="Measure judges, and whether training with their votes pays."
)

_FILE: Final = "judge.json"
_NONE: Final = "always"  # the arm that the others are compared with
_PLANTED: Final = ("oracle", "lot", "repeat")
_OF_POOL: Final = ("train", "measure_parent")  # purposes of groups that play the pool's tasks
_ARMS: Final = f"""\
Arms: `{_NONE}` votes +1 on every step, which says nothing; `trained` is your judge as configured, `frozen` your judge without training;
`shuffled` has your judge's votes on other steps; `oracle` the labels of the environment; `lot` and `repeat` the labels with as many
errors as your judge makes (balanced), by lot or the same for an action with the same result.
"""

Row = dict[str, Any]
Cells = list[list[str]]


@judge_app.command("check")
@with_options_of_train
def check(
    steps: Annotated[
        int, Option("--train", min=0, help="Training steps of each arm; 0 only judges rollouts.")
    ] = 0,
    arm: Annotated[
        list[str] | None,
        Option(help=f"trained, frozen, shuffled, {', '.join(_PLANTED)}; else all. Repeatable."),
    ] = None,
    seeds: Annotated[int, Option(min=1, help="Runs of each arm, with seeds 1 to N.")] = 6,
    state: Annotated[Path, Option(help="Folder of all runs, results and pages.")] = Path(
        "var/judge"
    ),
    **given: Any,
) -> None:
    """Judge rollouts of the present policy, and report how often the judge is right; with --train, whether its votes pay.

    Then the same seeds are trained with the judge, without what it knows, and with votes that are known to be right or wrong.
    --set holds in all arms. The same command goes on where it was stopped.
    """
    shared = arguments_of(given) | {"overrides": with_assignments({}, given["set_"] or ())}
    training = Training(**shared, state=state).for_beginners()
    document = training.without_models()
    if not parse(document).votes:
        preset = document.get("algorithm", {}).get("preset", "")
        raise InputError(
            f"given --reward-model {shared['reward_model']!r} with --preset {preset!r}, expected a judge and a preset that reads its "
            "votes: --reward-model FOLDER --preset rlanything"
        )
    found = _judged(shared, document, state)
    page = _show(found)
    if steps:
        accuracy = found["measures"].get("votes that are right, balanced", [None])[0]
        arms = {
            name: shared | {"steps": steps, "overrides": merge(shared["overrides"], one)}
            for name, one in _chosen(_arms(document, accuracy), arm).items()
        }
        results, differences = compare(arms, seeds, state)
        found["sentence"] = sentence(results, differences)
        (state / _FILE).write_text(json.dumps(found, indent=1))
        page += f"\n{_ARMS}\nTables of the arms: ab.md.\n\n{found['sentence']}\n"
    (state / "judge.md").write_text(page, encoding="utf-8")
    say(f"page: {state / 'judge.md'}, numbers: {state / _FILE}")
    say(found["sentence"] if steps else "whether its votes pay: the same command with --train 20")


def _judged(shared: Mapping[str, Any], document: Mapping[str, Any], state: Path) -> dict[str, Any]:
    """Return what is measured of the judge on one step's rollouts, from the file if they were judged before."""
    file, begun = state / _FILE, json.loads(json.dumps(shared, default=str))
    kept = json.loads(file.read_text()) if file.is_file() else {}
    if kept.get("arguments") == begun:
        say(f"judged before: {file}; delete it to judge anew")
        return dict(kept)
    one = {"run": {"steps": 1, "eval_every": 0}, "algorithm": _frozen(document)}
    state.mkdir(parents=True, exist_ok=True)
    export = state / "judged.parquet"
    say("--- rollouts of one step, judged")
    overrides = merge(shared["overrides"], one)
    named = {"name": "judged", "overrides": overrides, "export": export, "state": state}
    trained: Trained = train(**{**shared, **named}, console=console)
    if trained.run.status != "finished" or not trained.steps:
        raise ConflictError(
            f"run {trained.run.id}: {status_text(trained.run.status, trained.run.reason)}"
        )
    found = {
        "arguments": begun,
        "run": trained.run.id,
        **measured(trained.steps[-1].metrics, _rows(export)),
    }
    file.write_text(json.dumps(found, indent=1))
    return found


def _rows(export: Path) -> list[Row]:
    """Return the judged steps of an export."""
    import pyarrow.parquet as pq  # noqa: PLC0415  it is slow to import

    columns = [
        "purpose",
        "group_id",
        "trajectory_id",
        "action",
        "response",
        "label",
        "outcome",
        "votes",
    ]
    rows = pq.read_table(export, columns=columns).to_pylist()
    return [row for row in rows if row["votes"] and row["purpose"] in _OF_POOL]


def measured(metrics: Mapping[str, float], rows: Sequence[Row]) -> dict[str, Any]:
    """Return the measures of a judge by name, each with its interval over groups, and its errors by the kind of action."""
    measures: dict[str, list[float]] = {}
    for name, key in (
        ("votes that are right", "judge/accuracy"),
        ("votes that are right, balanced", "judge/balanced"),
        ("the same of the better constant answer", "judge/constant"),
        ("votes that agree with the outcome", "judge/outcome"),
        ("success against failure (1 is chance)", "theory/mu_within"),
        ("unreadable votes", "judge/invalid"),
    ):
        keys = (key, f"{key}/low", f"{key}/high")
        measures |= {name: [metrics[k] for k in keys if k in metrics]} if key in metrics else {}
    for name, chosen in (
        ("+1 on steps of successes", {"outcome": 1}),
        ("+1 on steps of failures", {"outcome": -1}),
        ("+1 on wrong steps of failures", {"outcome": -1, "label": -1}),
    ):
        counts = _praise([row for row in rows if chosen.items() <= row.items()])
        if counts:
            hits, of = map(sum, zip(*counts, strict=True))
            measures[name] = [hits / of, *share_interval(counts)]
    votes = [
        (row["label"], vote["value"], row["action"] or row["response"])
        for row in rows
        if row["label"] is not None
        for vote in row["votes"]
    ]
    return {
        "episodes": len({row["trajectory_id"] for row in rows}),
        "votes": sum(len(row["votes"]) for row in rows),
        "measures": measures,
        "kinds": errors_by_kind(votes),
    }


def _praise(rows: Sequence[Row]) -> list[tuple[int, int]]:
    """Return (votes of +1, votes) by group."""
    by_group = itemgetter("group_id")
    groups = [[*own] for _, own in groupby(sorted(rows, key=by_group), key=by_group)]
    votes = [[vote["value"] == 1 for row in own for vote in row["votes"]] for own in groups]
    return [(sum(own), len(own)) for own in votes]


def _show(found: Mapping[str, Any]) -> str:
    """Print the tables of a judge, and return them as Markdown."""
    rows: Cells = [
        [name, f"{value:.3f}", f"{ends[0]:.3f} to {ends[1]:.3f}" if ends else ""]
        for name, (value, *ends) in found["measures"].items()
    ]
    kinds = {name: VoteErrors(*one) for name, one in found["kinds"].items()}
    errors: Cells = [
        [
            name,
            str(one.votes),
            f"{one.wrong:.2f}",
            _share(one.praised, one.bad),
            _share(one.missed, one.good),
        ]
        for name, one in kinds.items()
    ]
    tables = (
        ([f"{found['votes']} votes on {found['episodes']} episodes", "mean", "95 %"], rows),
        (["action", "votes", "wrong", "of wrong steps +1", "of right steps -1"], errors),
    )
    for titles, lines in tables:
        table = grid(*titles)
        for line in lines:
            table.add_row(*line)
        if lines:
            console.print(table)
    text = "\n".join(markdown(*table) for table in tables if table[1])
    return f"# A judge of {found['arguments']['env']}\n\n{text}"


def _share(part: int, of: int) -> str:
    return f"{part / of:.2f} ({part} of {of})" if of else "-"


def _frozen(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the section of the algorithm for votes that train no judge: options that only its training reads are unset."""
    given = document.get("algorithm", {}).get("overrides", {})
    fields = CoreOptions.model_fields
    read = [name for name in given if name in fields and VOTES_TRAIN in fields[name].metadata]
    plain = {name: fields[name].default for name in read}
    unset = {name: "none" if value is None else value for name, value in plain.items()}
    return {"overrides": {**unset, "train_reward_model": False}}


def _arms(document: dict[str, Any], accuracy: float | None) -> dict[str, dict[str, Any]]:
    """Return what each arm changes; without labelled steps, of which the accuracy is known, there are no planted votes."""
    config, frozen = parse(document), {"algorithm": _frozen(document)}

    def scored(**reward: Any) -> dict[str, Any]:
        return {**frozen, "reward": reward}

    arms = {_NONE: scored(kind="praise")}
    if config.algorithm.resolved.train_reward_model:
        arms["trained"] = {}
    arms["frozen"] = frozen
    if config.reward.kind == "votes":
        arms["shuffled"] = scored(kind="shuffled")
    if accuracy is not None:
        arms["oracle"] = scored(kind="oracle")
        arms["lot"] = scored(kind="oracle", accuracy=round(accuracy, 3))
        arms["repeat"] = scored(kind="oracle", accuracy=round(accuracy, 3), errors="repeat")
    return arms


def _chosen(arms: Mapping[str, dict[str, Any]], names: Sequence[str] | None) -> dict[str, Any]:
    """Return the arm without votes and the named ones."""
    if unknown := [name for name in names or () if name not in arms]:
        raise InputError(
            f"--arm: given {', '.join(unknown)}, expected some of {', '.join(arms)}; oracle, lot and repeat need a family that labels "
            "its steps"
        )
    return {name: one for name, one in arms.items() if name == _NONE or name in (names or arms)}


def sentence(results: Results, differences: Mapping[str, Difference]) -> str:
    """Return one sentence on whether a judge pays."""
    mine = next((name for name in ("trained", "frozen") if name in differences), "")
    if not mine:
        return f"The judge itself was not tried: give --arm trained or frozen next to {', '.join(differences)}."
    words = {"better": "The judge pays", "worse": "The judge costs success"}
    one = differences[mine]
    ends = [mean([*ends_of(results, arm).values()]).value for arm in (mine, _NONE)]
    times = seconds_of(results, mine) / seconds_of(results, _NONE)
    parts = [
        f"{words.get(one.word, 'It is not shown that the judge pays')}: held-out success {ends[0]:.3f} with it ({mine}), {ends[1]:.3f} "
        f"with votes that say nothing ({_shown(one)}), in {times:.1f} times the time"
    ]
    about = {
        "shuffled": "its votes on wrong steps",
        "oracle": "votes that are always right",
        "lot": "as many errors by lot",
        "repeat": "as many errors that repeat",
    }
    others = [
        f"{text} {_shown(differences[name])}" for name, text in about.items() if name in differences
    ]
    parts += [f"in its place: {', '.join(others)}"] if others else []
    return "; ".join(parts) + "."


def _shown(one: Difference) -> str:
    return f"{one.mean.text(sign=True)}, {one.word}"
