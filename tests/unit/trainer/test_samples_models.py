"""Several models play one episode: each is trained on what it wrote itself, by its own versions and limits."""

from __future__ import annotations

import pytest

from services.trainer.credit.batches import batch_of
from services.trainer.credit.credited import STALE
from services.trainer.credit.judged_groups import judged_by, judges, players, stale_votes
from services.trainer.credit.options import SampleOptions
from services.trainer.credit.samples import Samples, build_samples
from services.trainer.credit.step_records import origin_of
from services.trainer.learner.objectives import objectives_of
from services.trainer.replay.credit import changes, credit
from services.trainer.replay.recorded_groups import groups_of
from services.trainer.replay.recording import StepRecord
from tests.unit.trainer.played import group_task, in_turns, judged
from triforge.config import RunConfig, parse
from triforge.types import JudgedGroup, WeightVersion

CONFIG = parse(
    {
        "models": {"mover": {"agents": ["mover"]}},
        "trainer": {"mover": {"max_tokens": 7}},
        "env_adapter": {"rollouts": 2},
        "run": {"min_measured": 1},
        "reward": {"votes": 1},
        "algorithm": {"overrides": {"reward_band": "none"}},
    }
)
VERSIONS = {"policy": 1, "reward": 1, "mover": 4}


def group_of_two(version: int = 4) -> JudgedGroup:
    """Two rollouts of planner and mover; the mover's weights have this version."""
    task = group_task(agents=players(CONFIG), rollouts=2, votes=1)
    votes = [[[1], [-1], [1], [-1]]] * 2
    return in_turns(judged(task, [1, -1], votes), {"policy": 1, "mover": version})


def _samples(group: JudgedGroup, config: RunConfig = CONFIG) -> Samples:
    return build_samples([group], SampleOptions.of(config, 1, VERSIONS, 0.0))


def test_each_model_is_trained_on_its_own_segments() -> None:
    samples = _samples(group_of_two())
    keys = {
        role: [row.key.partition("-")[2] for row in rows] for role, rows in samples.rows.items()
    }
    assert (keys["policy"], keys["mover"]) == (["00/0", "01/0"], ["00/1", "01/1"])
    assert {v for row in samples.rows["mover"] for v in row.versions} == {-1, 4}
    assert samples.ages["mover"] == {0: 4}
    for role in ("policy", "mover"):
        assert abs(sum(w for row in samples.rows[role] for w in row.weights) - 1.0) < 1e-9
    assert [line["staleness"] for line in samples.lines] == [0, 0]


@pytest.mark.parametrize(
    ("job", "imitated", "reason"),
    [("ce", [1.0, 0.0], "not a success"), ("dpo_pair", [1.0, -1.0], "")],
)
def test_a_model_with_an_objective_of_its_own_is_credited_by_it_alone(
    job: str, imitated: list[float], reason: str
) -> None:
    plain = _samples(group_of_two())
    document = CONFIG.model_dump(mode="json")
    document["trainer"]["mover"]["job"] = job
    own = parse(document)
    samples = _samples(group_of_two(), own)
    assert samples.rows["policy"] == plain.rows["policy"]
    assert samples.rows["reward"] == plain.rows["reward"]
    movers = [r for r in samples.records if r["model"] == "mover"]
    assert [r["advantage"] for r in movers] == [a for a in imitated for _ in range(2)]
    assert {r["reason"] for r in movers} == {"", reason}
    assert len(samples.rows["mover"]) == len([a for a in imitated if a])
    weights = WeightVersion(number=4, folder="m")
    batch = batch_of(
        own, "r", "mover", 1, samples.rows["mover"], uri="", initial=weights, start=weights
    )
    assert objectives_of(batch) == [job]
    origin, numbers = origin_of(own), SampleOptions.of(own, 1, VERSIONS, 0.0).numbers
    record = StepRecord(samples.records, origin["config"], origin["algorithm"], numbers)
    assert credit(1, record).samples.rows == samples.rows


def test_the_bound_counts_the_versions_of_the_model_that_wrote() -> None:
    samples = _samples(group_of_two(version=3))
    assert samples.rows["mover"] == []
    assert samples.reasons[STALE] == 4
    assert len(samples.rows["policy"]) == 2
    assert [line["staleness"] for line in samples.lines] == [1, 1]


def test_a_record_says_who_wrote_and_gives_every_number_again() -> None:
    given = group_of_two()
    samples = _samples(given)
    assert [(r["agent_id"], r["model"]) for r in samples.records[:2]] == [
        ("planner", "policy"), ("mover", "mover"),
    ]  # fmt: skip
    options = SampleOptions.of(CONFIG, 1, VERSIONS, 0.0)
    origin = origin_of(CONFIG)
    record = StepRecord(samples.records, origin["config"], origin["algorithm"], options.numbers)
    again = credit(1, record)
    assert again.samples.rows == samples.rows
    assert again.samples.records == samples.records
    (found,) = groups_of(samples.records, CONFIG)
    assert [t.segments for t in found.played.trajectories] == [
        t.segments for t in given.played.trajectories
    ]
    assert {role: change.flipped for role, change in changes(again, again).items()} == {
        "policy": 0, "mover": 0, "reward": 0,
    }  # fmt: skip


# ---- a judge an agent ----

APART = parse(
    {
        "models": {"mover": {"agents": ["mover"]}, "moverjudge": {"judges": ["mover"]}},
        "trainer": {"moverjudge": {"max_tokens": 99}},
        "env_adapter": {"rollouts": 2},
        "reward": {"votes": 2},
        "algorithm": {"overrides": {"reward_band": "none"}},
    }
)
JUDGED = {"policy": 1, "reward": 3, "mover": 4, "moverjudge": 6}


def judged_apart(votes: list[list[list[int]]], versions: dict[str, int]) -> JudgedGroup:
    """Two rollouts of planner and mover, each of whose steps its own judge voted on."""
    task = group_task(agents=players(APART), judges=judges(APART), rollouts=2, votes=2)
    return in_turns(judged(task, [1, -1], votes), versions)


def test_each_judge_is_trained_on_its_own_votes_compared_with_each_other_alone() -> None:
    ours = [[1, -1], [1, 1], [1, -1], [-1, 1]]
    group = judged_apart([ours] * 2, JUDGED)
    options = SampleOptions.of(APART, 1, JUDGED, 0.0)
    samples = build_samples([group], options)
    steps = {
        role: sorted({int(row.key.split("/")[1]) for row in samples.rows[role]})
        for role in ("reward", "moverjudge")
    }
    assert steps == {"reward": [0, 2], "moverjudge": [1, 3]}
    assert {v for row in samples.rows["moverjudge"] for v in row.versions} == {-1, 6}
    assert (samples.ages["reward"], samples.ages["moverjudge"]) == ({0: 16}, {0: 16})
    for role in steps:
        assert abs(sum(w for row in samples.rows[role] for w in row.weights) - 1.0) < 1e-9
    planner = samples.rows["reward"]
    other = [row if n % 2 == 0 else [1, 1] for n, row in enumerate(ours)]
    again = build_samples([judged_apart([other] * 2, JUDGED)], options)
    assert again.rows["reward"] == planner, "what the other judge says does not matter"
    assert again.rows["moverjudge"] != samples.rows["moverjudge"]
    record = StepRecord(
        samples.records, *(origin_of(APART)[k] for k in ("config", "algorithm")), options.numbers
    )
    replayed = credit(1, record)
    assert (replayed.samples.rows, replayed.samples.records) == (samples.rows, samples.records)
    assert changes(replayed, replayed)["moverjudge"].trained == [8, 8]


def test_a_vote_is_as_old_as_the_judge_that_cast_it() -> None:
    group = judged_apart([[[1, -1], [1, -1]]] * 2, JUDGED)
    assert judged_by(group) == {("reward", 3), ("moverjudge", 6)}
    assert stale_votes(group, {"reward": 3, "moverjudge": 6}) == ()
    assert stale_votes(group, {"reward": 0, "moverjudge": 7}) == ("g-00", "g-01")
    late = build_samples([group], SampleOptions.of(APART, 1, JUDGED | {"moverjudge": 7}, 0.0))
    assert (len(late.rows["reward"]), late.rows["moverjudge"]) == (4, [])
    assert late.vote_reasons[STALE] == 4
