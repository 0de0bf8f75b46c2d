"""Tasks that are too easy soon: what its arms are, that they go round, and what the report says of them."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

from experiments.loop import play
from experiments.outgrown import ARMS, MAIN, OUTGROWN, PLANNED, SEEDS, OutgrownSettings
from experiments.record import Models
from experiments.report import Page
from triforge.config import parse

MODELS = {"policy": "p", "reward": "j", "rewriter": "r"}


def test_arms_differ_by_votes_and_by_what_becomes_of_tasks_and_by_nothing_else() -> None:
    o, n, a, e = (parse(OUTGROWN.full.document(ARMS[name], 31, MODELS)) for name in MAIN)
    assert n.algorithm == e.algorithm
    assert e.algorithm.resolved.needs_votes
    assert e.algorithm.resolved.train_reward_model
    assert o.algorithm == a.algorithm
    assert not o.algorithm.resolved.needs_votes
    assert [c.adaptation.chosen.rewrites for c in (o, n, a, e)] == [False, True, True, True]
    assert a.adaptation == e.adaptation
    assert n.adaptation == e.adaptation.model_copy(update={"null_control": 1.0})
    assert not any(c.adaptation.pairs_on_top for c in (n, a, e))
    rest = [c.model_dump(exclude={"algorithm", "adaptation"}) for c in (o, n, a, e)]
    assert rest[1:] == rest[:1] * 3
    room = parse(OUTGROWN.full.document(ARMS["A_room"], 31, MODELS))
    assert room.adaptation == a.adaptation.model_copy(update={"max_drift": 0.19})
    kept = parse(OUTGROWN.full.document(ARMS["A_kept"], 31, MODELS))
    assert (kept.adaptation.keep_goal, a.adaptation.keep_goal) == (True, False)
    assert ARMS["A_model"].config["rewriter"] == ""  # the model is asked


def test_an_adapted_run_goes_round_and_is_reported(models: Models, tmp_path: Path) -> None:
    settings = OUTGROWN.quick
    assert isinstance(settings, OutgrownSettings)
    assert OUTGROWN.compared
    settings = replace(settings, tasks=tuple(replace(kind, heldout=1) for kind in settings.tasks))
    arm = ARMS["A"]
    result = asdict(play("A", arm, 7, settings, models))
    assert sum(result["tasks"]["proposals"].values()) > 0
    # an untrained policy wins nothing: the report is made of what a trained one might have
    results = {}
    for seed in SEEDS[:3]:
        for place, name in enumerate(MAIN):
            late = dict.fromkeys(result["evaluations"][0], place * (0.1 + 0.0001 * (seed % 3)))
            tasks = result["tasks"] | {"accepted_kinds": {"place": 3, "two": 1}}
            ends = [result["evaluations"][0], late | {"step": 2.0}]
            results[name, seed] = {**result, "arm": name, "evaluations": ends, "tasks": tasks}
    page = Page(
        seeds=SEEDS[:3],
        command="c",
        minutes=1,
        machine="m",
        pictures=OUTGROWN.compared.draw(results, tmp_path),
    )
    text = OUTGROWN.compared.write(results, settings.steps, page)
    assert f"- Held at 0.05: {', '.join(f'{a} > {b}' for a, b in PLANNED)}." in text
    assert "| A > O, all held-out tasks, sampled | +0.200 ± 0.000 |" in text
    assert "| 0.250 ± 0.000 |" in text  # rewrites to other goals
    assert (tmp_path / "outgrown-band-dark.svg").stat().st_size > 1000
