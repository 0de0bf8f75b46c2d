"""Tasks that are too hard at first: what its arms are, what its report says, and that they go round."""

from __future__ import annotations

from dataclasses import asdict, replace

from environments.household.family import FAMILY
from experiments.frontier import ARMS, FRONTIER, FrontierSettings, table
from experiments.loop import play
from experiments.record import Models
from experiments.rewriters import last_choice
from experiments.table1 import ARMS as TABLE1
from triforge.config import parse
from triforge.rollout.choices import one_of
from triforge.types import ChatMessage, GenerateRequest, Sampling

MODELS = {"policy": "p", "reward": "j", "rewriter": "r"}


def test_arms_differ_by_what_becomes_of_tasks_alone() -> None:
    o, a, mixed, lot = (parse(FRONTIER.full.document(ARMS[name], 21, MODELS)) for name in ARMS)
    assert ARMS["O"] == TABLE1["O"]
    assert a == lot  # who rewrites is no part of the document
    assert mixed.adaptation.original_share == 0.5
    assert o.algorithm == a.algorithm == mixed.algorithm
    assert not a.algorithm.resolved.needs_votes
    assert a.adaptation.chosen.rewrites
    assert not o.adaptation.chosen.rewrites
    assert not a.adaptation.pairs_on_top


def test_the_drift_that_is_allowed_leaves_goal_and_hint_as_they_are() -> None:
    drift = parse(FRONTIER.full.document(ARMS["A"], 21, MODELS)).adaptation.max_drift
    assert isinstance(FRONTIER.full, FrontierSettings)
    before = FAMILY.generate(count=1, seed=1, options=dict(FRONTIER.full.tasks[0].options))[0]
    goal = {**before["goal"], "target": "desk"}  # type: ignore[dict-item]
    assert FAMILY.drift(before, {**before, "goal": goal}) > drift
    assert FAMILY.drift(before, {**before, "hint": True}) > drift
    receptacles = {**before["receptacles"], "bed 1": "open"}  # type: ignore[dict-item]
    assert FAMILY.drift(before, {**before, "receptacles": receptacles}) < drift


async def test_the_boldest_rewriter_takes_the_last_choice() -> None:
    sampling = Sampling(max_new_tokens=8, regex=one_of(["small", "large"]))
    message = ChatMessage(role="user", content="?")
    reply = await last_choice(GenerateRequest(messages=(message,), n=2, sampling=sampling))
    assert [output.text for output in reply.outputs] == ["large", "large"]


def test_an_adapted_run_goes_round_and_is_reported(models: Models) -> None:
    settings = FRONTIER.quick
    assert isinstance(settings, FrontierSettings)
    kinds = tuple(replace(kind, heldout=1) for kind in settings.tasks)
    settings = replace(settings, tasks=kinds)
    result = play("A", ARMS["A"], 7, settings, models)
    assert sum(result.tasks["proposals"].values()) > 0
    assert result.tasks["accepted_kinds"] == {}  # an untrained policy wins nothing
    line = table({("A", 7): asdict(result)}).splitlines()[2]
    assert line.startswith(f"| {ARMS['A'].title} (`A`) | 7 | 0.000 | 0.000 |")
    assert line.endswith("| 0 |")
