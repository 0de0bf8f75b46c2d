"""Judge targets of each step: numbers by hand, and steps without a target."""

import pytest

from tests.rollouts import vote_credit
from triforge.algorithms.algorithm import Algorithm, resolve
from triforge.algorithms.core import CoreOptions
from triforge.algorithms.credit import NO_TARGET
from triforge.algorithms.judge_targets import Judged, judge_target
from triforge.algorithms.registry import NoOptions
from triforge.config import parse
from triforge.errors import ConfigError, InputError

OUTCOMES = [1, 1, -1, -1]
VOTES = [[[1, 1], [1, -1]], [[1, -1], [-1, -1]], [[1, 1], [-1, -1]], [[-1, 1]]]
SEEN = [["s", "x"], ["s", "x"], ["s", "x"], ["s"]]
DONE = [["a", "b"], ["a", "c"], ["a", "b"], ["d"]]

GOLDEN = {
    "published": [[2, 1], [1, 0], [0, -2], [-1]],
    "centred": [[1.5, 4 / 3], [0.5, 1 / 3], [-0.5, -5 / 3], [-1.5]],
    "monte_carlo": [[1 / 3, -1 / 3], [1 / 3, 2 / 3], [1 / 3, -1 / 3], [-1]],
}


def targets(name, outcomes=OUTCOMES, votes=VOTES, seen=SEEN, done=DONE, **options):
    algorithm = resolve("rlanything", {"judge_target": name, **options})
    return algorithm.targets(Judged(outcomes, votes, seen, done))


def rows(expected):
    return [pytest.approx(row) for row in expected]


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_the_targets_have_the_numbers_computed_by_hand(name):
    assert [list(row) for row in targets(name)] == rows(GOLDEN[name])


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_a_rollout_without_outcome_changes_no_target(name):
    found = targets(name, [*OUTCOMES, None], [*VOTES, [[1, 1]]], [*SEEN, ["s"]], [*DONE, ["d"]])
    assert [list(row) for row in found] == [*rows(GOLDEN[name]), [None]]


def test_the_weight_of_votes_is_in_the_targets_that_have_votes_in_them():
    assert targets("published", reward_lam=0.5)[0] == [1.5, 1.0]
    # 1.5, 1, -0.5, -1 at index 0; 1, 0.5, -1.5 at index 1
    assert list(targets("centred", reward_lam=0.5)[0]) == pytest.approx([1.25, 1.0])
    with pytest.raises(ConfigError, match=r"reward_lam: given .*with the votes in it"):
        targets("monte_carlo", reward_lam=0.5)


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("index", [[-1 / 3, 2 / 3], [-1 / 3, -4 / 3], [2 / 3, 2 / 3]]),
        ("history", [[-1 / 3, 1], [-1 / 3, -1], [2 / 3, None]]),
        ("state", [[-1 / 3, 2 / 3], [-1 / 3, -4 / 3], [2 / 3, 2 / 3]]),
    ],
)
def test_what_stands_at_one_place_is_an_option(place, expected):
    seen, done = [["s", "x"]] * 3, [["a", "b"], ["a", "c"], ["d", "b"]]
    found = targets("monte_carlo", [1, -1, 1], [[[1], [1]]] * 3, seen, done, target_place=place)
    assert [list(row) for row in found] == rows(expected)


def test_a_state_may_come_at_any_index_and_a_rollout_counts_once_in_it():
    seen, done = [["s", "x", "x"], ["x"]], [["a", "b", "b"], ["c"]]
    votes = [[[1], [1], [1]], [[1]]]
    found = targets("monte_carlo", [1, -1], votes, seen, done, target_place="state")
    assert found == [[None, 1.0, 1.0], [-1.0]]


def test_votes_without_a_target_do_not_train_but_unparsable_ones_do():
    options = {"judge_target": "monte_carlo", "target_place": "state"}
    algorithm = resolve("rlanything", options)
    votes, done = [[[1, 1], [1, 0]], *VOTES[1:]], [["a", "d"], *DONE[1:]]
    seen = [["s", "alone"], *SEEN[1:]]
    credit = vote_credit(OUTCOMES, votes, algorithm=algorithm, state=seen, action=done)
    assert credit.rewards[0][1] == (None, -2.0)
    assert credit.reasons[0][1] == (NO_TARGET, None)
    assert credit.advantages[0][1][1] < min(0.0, credit.advantages[1][1][0])


@judge_target("outcome_alone")
def outcome_alone(judged: Judged, algorithm: CoreOptions, options: NoOptions):
    return [
        [outcome] * len(steps) for outcome, steps in zip(judged.outcomes, judged.votes, strict=True)
    ]


@judge_target("short")
def short(judged: Judged, algorithm: CoreOptions, options: NoOptions):
    return [[0.0]]


def test_a_target_of_ones_own_is_named_by_its_path():
    mine = resolve("rlanything", {"judge_target": f"{__name__}:outcome_alone"})
    assert vote_credit([1, -1], [[[1]], [[1]]], algorithm=mine).rewards == (((1,),), ((-1,),))
    with pytest.raises(
        InputError, match=r"'short': gave \[1\] targets a trajectory, expected \[1, 1"
    ):
        resolve("rlanything", {"judge_target": f"{__name__}:short"}).targets(
            Judged([1, -1], [[[1]], [[1]]])
        )


def test_a_target_survives_the_wire_and_is_refused_where_nothing_reads_it():
    found = resolve("rlanything", {"judge_target": "monte_carlo", "target_place": "state"})
    assert Algorithm.model_validate_json(found.model_dump_json()) == found
    assert found.changed(judge_target="published").judge_target_options == NoOptions()
    programs = {
        "algorithm": {"overrides": {"judge_target": "centred"}},
        "reward": {"kind": "cure"},
    }
    with pytest.raises(ConfigError, match="judge_target = 'centred', allowed published"):
        parse(programs)


def test_a_label_is_the_target_of_an_audited_step_and_others_have_none():
    algorithm = resolve("rlanything", {"judge_target": "label"})
    labels = [[1, -1], [None, None], [-1, 1], [None]]
    found = algorithm.targets(Judged(OUTCOMES, VOTES, SEEN, DONE, labels=labels))
    assert [list(row) for row in found] == [[1, -1], [None, None], [-1, 1], [None]]
