"""Transitions from what was played, and their rows."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from demo.models.tiny_models import TinyShape, build_tiny_model
from methods.envrl.loop import EnvRL
from methods.envrl.options import EnvRLOptions
from methods.envrl.rows import AuxiliaryRows, auxiliary_rows, item
from methods.envrl.transitions import Drawn, Transition, draw_transitions
from services.trainer.credit.options import Limits, SampleOptions
from services.trainer.credit.samples import Samples, build_samples
from services.trainer.learner.learner import Learner
from services.trainer.loop.hooks import MethodContext
from tests.batches import train_batch
from tests.unit.trainer.played import group_task, task_of
from triforge.config import parse
from triforge.rendering import Renderer
from triforge.types import (
    ChatMessage,
    ErrorInfo,
    JudgedGroup,
    Outcome,
    Segment,
    Step,
    Trajectory,
    TrajectoryGroup,
    VersionSpan,
)

# What a place looks like, and where its APIs lead: everything that happens in it follows from this.
PLACES = {"fridge": "closed mug", "shelf": "egg", "mug": "empty", "egg": "closed"}
WORDS = [*PLACES, "put", "go", "closed", "empty", "nothing", "1", ">", ";", "?"]


def options(**changes: object) -> EnvRLOptions:
    fields: dict[str, object] = {
        "sp": {"lambda0": 0.2}, "id": {"lambda0": 0.2}, "prompt": "terse",
        "noop_texts": ["nothing"], "max_samples_per_update": 99,
    }  # fmt: skip
    return EnvRLOptions.model_validate(fields | changes)


def played(
    renderer: Renderer | None,
    turns: list[tuple[str, str]],
    last: str,
    *,
    index: int = 0,
    outcome: int | None = -1,
    group: str = "g",
    task: str = "task",
    changes: dict[int, dict[str, object]] | None = None,
) -> Trajectory:
    """A trajectory of (observation, action) turns that ends with `last`, with its ids if a renderer is given."""
    ids: list[int] = []
    steps = []
    for number, (observation, action) in enumerate(turns):
        start = end = 0
        if renderer:
            ids = renderer.extend(ids, [ChatMessage(role="user", content=observation)])
            start = len(ids)
            ids = [*ids, *renderer.encode_text(action), renderer.eos_ids[0]]
            end = len(ids)
        after = turns[number + 1][0] if number + 1 < len(turns) else last
        fields = {
            "index": number, "observation": observation, "response": action, "action": action,
            "next_observation": after, "start": start, "end": end,
        }  # fmt: skip
        steps.append(Step.model_validate(fields | (changes or {}).get(number, {})))
    error = ErrorInfo(kind="environment", detail="broke") if outcome is None else None
    return Trajectory(
        id=f"{group}-{index:02d}", group_id=group, index=index, task_id=task, task_version=0,
        instruction="put mug shelf", steps=tuple(steps), outcome=Outcome(value=outcome, error=error),
        segments=(Segment(ids=tuple(ids), logprobs=(0.0,) * len(ids), versions=()),),
    )  # fmt: skip


def group_of(*trajectories: Trajectory, **changes: object) -> JudgedGroup:
    first = trajectories[0]
    task = group_task(first.group_id, task_id=first.task_id, **changes)
    return JudgedGroup(
        played=TrajectoryGroup(group=task, task=task_of(task), trajectories=trajectories),
        votes=(None,) * len(trajectories),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = TinyShape(hidden=16, layers=2, heads=2, max_positions=64)
    return build_tiny_model(tmp_path_factory.mktemp("words") / "tiny", WORDS, shape=shape, seed=3)


@pytest.fixture(scope="module")
def renderer(folder: Path) -> Renderer:
    return Renderer.from_folder(folder)


LOOK = [("fridge shelf", "go fridge"), ("closed", "go shelf"), ("egg", "put mug")]


def drawn(groups: list[JudgedGroup], **changes: object) -> Drawn:
    return draw_transitions(groups, options(**changes), trained=99, seed=1)


def rows_of(groups: list[JudgedGroup], renderer: Renderer, **changes: object) -> AuxiliaryRows:
    return auxiliary_rows(groups, options(**changes), renderer, trained=99, max_tokens=200, seed=1)


def hooks(folder: Path, changes: dict[str, object], **sections: object) -> EnvRL:
    models = {"policy": {"path": str(folder)}}
    config = parse({"models": models, "methods": {"envrl": changes}, **sections})
    parts: Any = None
    run = MethodContext(name="envrl", parts=parts, run_id="run", config=config)
    return EnvRL(run, config.methods.named["envrl"])


def samples_of(trained: int) -> Samples:
    reasons = Counter({"trained": trained})
    return Samples(rows={}, records=[], lines=[], reasons=reasons, vote_reasons=Counter(), ages={})


def targets(renderer: Renderer, row: object) -> str:
    ids = [i for i, w in zip(row.ids, row.weights, strict=True) if w]  # type: ignore[attr-defined]
    return renderer.decode(ids, skip_special_tokens=False)


def test_a_step_becomes_a_transition_with_its_window_of_history():
    found = drawn([group_of(played(None, [*LOOK, ("empty", "go fridge")], "closed"))], history=1)
    assert [t.key for t in found.transitions] == ["g-00/0", "g-00/1", "g-00/2"]
    last = found.transitions[2]
    assert last == Transition(
        key="g-00/2", task_id="task", instruction="put mug shelf",
        past=(("closed", "go shelf"),), observation="egg", action="put mug", next_observation="empty",
        idle=False,
    )  # fmt: skip
    assert drawn([group_of(played(None, LOOK, "empty"))], history=0).transitions[1].past == ()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"finish": "length"}, "response cut off"),
        ({"action_valid": False}, "invalid action"),
        ({"action": " "}, "invalid action"),
        ({"next_observation": " "}, "nothing to predict"),
        ({"next_observation": "\n\nCommands: 1"}, "nothing to predict"),
        ({"next_observation": "Harness: slow"}, "harness warning"),
    ],
)
def test_a_step_that_says_nothing_of_the_environment_is_left_out(change, reason):
    group = group_of(played(None, LOOK, "empty", changes={1: change}))
    found = drawn([group], warning_texts=["harness"])
    assert [t.key for t in found.transitions] == ["g-00/0"]
    assert found.left_out == {reason: 1, "terminal": 1}
    assert found.found == 3


def test_failures_count_like_successes_and_unmeasured_episodes_not_at_all():
    def transitions(outcome):
        return drawn([group_of(played(None, LOOK, "empty", outcome=outcome))]).transitions

    assert transitions(1) == transitions(-1)
    assert transitions(None) == []


@pytest.mark.parametrize(
    ("purpose", "overrides", "teaches"),
    [
        ("evaluate", {}, False),
        ("measure_candidate", {}, True),
        ("measure_candidate", {"train_on_pairs": "parent"}, False),
    ],
)
async def test_what_is_not_for_training_teaches_nothing(folder, purpose, overrides, teaches):
    envrl = hooks(folder, {"id": {"lambda0": 0.1}}, algorithm={"overrides": overrides})
    groups = [group_of(played(None, LOOK, "empty"), purpose=purpose)]
    await envrl.more_samples(1, groups, samples_of(9))
    measures = await envrl.measure(1, groups, samples_of(9))
    assert (measures["aux/found"] > 0) is teaches


def test_identical_transitions_count_once():
    same = [played(None, LOOK, "empty", index=i) for i in range(4)]
    found = drawn([group_of(*same)])
    assert len(found.transitions) == 2
    assert found.left_out == {"terminal": 4, "repeated": 6}


def test_idle_steps_are_capped_and_the_limit_is_what_the_policy_trains_on_unless_set():
    turns = [(f"shelf {i}", f"go {i}") for i in range(9)] + [
        ("nothing", f"put {i}") for i in range(30)
    ]
    groups = [group_of(played(None, turns, "empty"))]
    found = drawn(groups)
    idle = [t for t in found.transitions if t.idle]
    assert (len(idle), len(found.transitions)) == (2, 10)  # 8 others, and 3 of 11 are too many
    some = draw_transitions(groups, options(max_samples_per_update=0), trained=8, seed=1)
    assert len(some.transitions) == 8
    assert (
        draw_transitions(groups, options(max_samples_per_update=0), trained=0, seed=1).transitions
        == []
    )


def test_the_list_of_admissible_commands_is_neither_shown_nor_predicted(renderer: Renderer):
    listed = [(f"{seen}\n\nCommands:\n1: go fridge", did) for seen, did in LOOK]
    rows = rows_of([group_of(played(None, listed, "empty"))], renderer).rows
    assert len(rows) == 4
    for row in rows:
        assert "1" not in renderer.decode(list(row.ids)).split()


def test_separate_items_say_what_is_asked_and_train_the_answer_alone(renderer: Renderer):
    rows = rows_of([group_of(played(None, LOOK, "empty"))], renderer).rows
    assert [row.key for row in rows] == ["sp/g-00/0", "sp/g-00/1", "id/g-00/0", "id/g-00/1"]
    texts = [renderer.decode(list(row.ids), skip_special_tokens=False) for row in rows]
    assert texts[1] == (
        "<user> put mug shelf ; fridge shelf > go fridge ; closed > go shelf ; ? <assistant> egg <end>"
    )
    assert texts[3] == "<user> put mug shelf ; closed ? ; egg <assistant> go shelf <end>"
    assert [targets(renderer, row) for row in rows] == [
        "closed <end>", "egg <end>", "go fridge <end>", "go shelf <end>",
    ]  # fmt: skip
    for name in ("sp", "id"):
        weights = [w for row in rows if row.objective == name for w in row.weights]
        assert sum(weights) == pytest.approx(1.0)
        assert len({w for w in weights if w}) == 1


def test_sentences_tell_a_language_model_what_to_write():
    transition = drawn([group_of(played(None, LOOK, "empty"))]).transitions[1]
    system, asked, answer = item("sp", transition, "plain")
    assert "what the environment will show" in str(system.content)
    assert str(asked.content).split("\n\n") == [
        "Task: put mug shelf", "Seen before: fridge shelf", "Done: go fridge", "Seen now: closed",
        "Next action: go shelf",
    ]  # fmt: skip
    assert answer == ChatMessage(role="assistant", content="egg")
    asked, answer = item("id", transition, "plain")
    assert str(asked.content).split("\n\n")[1:] == [
        "Task: put mug shelf", "Seen first: closed", "Seen then: egg",
    ]  # fmt: skip
    assert answer.content == "go shelf"


def test_a_long_target_is_cut_off_and_does_not_end(renderer: Renderer):
    turns = [("shelf", "go fridge"), ("egg " * 30, "go shelf")]
    rows = rows_of([group_of(played(None, turns, "empty"))], renderer, max_target_tokens=5).rows
    assert targets(renderer, rows[0]) == "egg egg egg egg egg"
    assert targets(renderer, rows[1]) == "go fridge <end>"


def test_an_item_that_is_too_long_is_left_out_and_counted(renderer: Renderer):
    groups = [group_of(played(None, [("shelf " * 250, "go fridge"), *LOOK], "empty"))]
    made = rows_of(groups, renderer, history=1)
    assert (
        made.measures["aux/left_out/longer than max_tokens"] == 3
    )  # one item remembers the long one
    assert sum(
        w for row in made.rows if row.objective == "sp" for w in row.weights
    ) == pytest.approx(1)


def test_an_objective_of_weight_0_has_no_rows_unless_it_is_to_be_measured(renderer: Renderer):
    groups = [group_of(played(None, LOOK, "empty"))]
    only_id = rows_of(groups, renderer, sp={"lambda0": 0.0})
    assert {row.objective for row in only_id.rows} == {"id"}
    both = rows_of(groups, renderer, sp={"lambda0": 0.0}, measure=True)
    assert {row.objective for row in both.rows} == {"sp", "id"}


def test_both_errors_fall_in_a_world_that_follows_rules(folder: Path, renderer: Renderer):
    """An action names a place; what is seen then is that place, whatever was seen before."""
    draw = random.Random(5)
    walks = []
    for index in range(6):
        there = [draw.choice(list(PLACES)) for _ in range(7)]
        seen = ["empty", *(PLACES[place] for place in there)]
        turns = [(before, f"go {place}") for before, place in zip(seen, there, strict=False)]
        walks.append(played(renderer, turns, seen[-1], index=index))
    rows = rows_of([group_of(*walks)], renderer, history=0).rows
    learner, reports = Learner.fresh(folder), []
    for step in range(1, 26):
        batch = train_batch(
            folder, step=step, version=0, num_rows=len(rows), learning_rate=1e-2,
            envrl={"weights": {"sp": 1.0, "id": 1.0}},
        )  # fmt: skip
        reports.append(learner.train(batch, rows).metrics)
    first, last = reports[0], reports[-1]
    assert last["aux/sp/nll"] < 0.3 * first["aux/sp/nll"]
    assert last["aux/id/nll"] < 0.3 * first["aux/id/nll"]
    assert first["aux/id/exact"] < 0.3 < 0.9 < last["aux/id/exact"]


@pytest.mark.parametrize("preset", ["grpo", "gigpo"])
async def test_a_step_of_either_estimator_trains_policy_and_objectives_in_one_batch(
    folder: Path, renderer: Renderer, preset: str
):
    own = options(max_samples_per_update=0).model_dump(mode="json")
    envrl = hooks(folder, own, run={"steps": 3}, algorithm={"preset": preset})
    spans = [VersionSpan(version=0, start=0, end=99)]
    walks = [
        trajectory.model_copy(
            update={"segments": tuple(s.model_copy(update={"versions": tuple(spans)}) for s in trajectory.segments)}
        )
        for trajectory in (
            played(renderer, LOOK, "empty", outcome=1),
            played(renderer, [("fridge shelf", "go shelf"), ("egg", "go fridge")], "closed", index=1),
        )
    ]  # fmt: skip
    groups = [group_of(*walks)]
    limits = Limits(max_tokens=64, max_rows=0)
    samples = build_samples(
        groups, SampleOptions(algorithm=envrl.run.config.algorithm.resolved, players={"policy": (0, limits)}, judging={"reward": (0, limits)}, seed=1))  # fmt: skip
    trained = samples.reasons["trained"]
    made = await envrl.more_samples(1, groups, samples)
    measures = await envrl.measure(1, groups, samples)
    assert 0 < measures["aux/drawn"] <= trained
    rows = [*samples.rows["policy"], *made]
    batch = await envrl.batch(1, train_batch(folder, version=0, num_rows=len(rows)))
    metrics = Learner.fresh(folder).train(batch, rows).metrics
    assert metrics["updates"] >= 1
    assert metrics["aux/sp/weight"] == metrics["aux/id/weight"] == 0.2
    assert await envrl.more_samples(4, groups, samples_of(0)) == []  # beyond the last step
