"""The presets: options, overrides, and one test a mend that shows the fault and its absence."""

import json
import math

import pytest

from tests.rollouts import step_credit, vote_credit
from triforge.algorithms.acceptance import decide, paper_accepts
from triforge.algorithms.algorithm import Algorithm, resolve
from triforge.algorithms.loss_terms import KL_ESTIMATORS
from triforge.algorithms.presets import preset_names
from triforge.errors import ConfigError

PAPER, DEFAULT = resolve("rlanything_paper"), resolve("rlanything")


def flat(algorithm):
    core = algorithm.model_dump()
    own = core.pop("estimator_options") | core.pop("loss_options")
    own |= core.pop("judge_target_options") | core.pop("job_options")
    return core | own


def test_only_the_mends_differ_between_the_published_rules_and_the_default():
    ours, theirs = flat(DEFAULT), flat(PAPER)
    assert {k for k in ours if ours[k] != theirs[k]} == {
        "name",
        "std_floor",
        "lone_step",
        "vote_scope",
        "drop_unanimous",
        "invalid_votes",
        "reinforce_unrewarded_votes",
        "bands",
        "acceptance",
        "train_on_pairs",
        "kl_reference",
        "kl_clamp",
    }


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_survives_json(name):
    algorithm = resolve(name)
    assert Algorithm.model_validate_json(algorithm.model_dump_json()) == algorithm
    assert resolve(name, json.loads(json.dumps(flat(algorithm)))) == algorithm
    assert algorithm.name == name


@pytest.mark.parametrize("option", ["kl_clamp", "policy_band"])
def test_null_and_the_word_none_mean_no_limit(option):
    assert getattr(resolve("rlanything", {option: None}), option) is None
    assert getattr(resolve("rlanything", {option: "none"}), option) is None


@pytest.mark.parametrize(
    ("name", "needs"), [("rlanything", True), ("rlanything_paper", True), ("grpo", False)]
)
def test_only_presets_that_use_votes_ask_for_them(name, needs):
    assert resolve(name).needs_votes is needs
    assert resolve(name, {"train_reward_model": True}).needs_votes is True


def test_an_unknown_preset_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"given 'pppo', allowed one of \['"):
        resolve("pppo")


@pytest.mark.parametrize(
    ("overrides", "bound", "expected"),
    [
        ({}, 0, {"mode": "none"}),
        ({}, 2, {"mode": "tis", "cap": 2.0}),
        ({"off_policy_level": "sequence"}, 1, {"mode": "tis", "cap": 5.0}),
        ({"off_policy": "mis"}, 1, {"band": (0.5, 2.0), "veto": 1e-4}),
        ({"off_policy": "mis", "off_policy_level": "geometric"}, 0, {"band": (0.99, 1.01)}),
        ({"off_policy_cap": 3.0}, 1, {"cap": 3.0}),
    ],
)
def test_what_is_left_open_is_decided_by_the_bound_and_the_level(overrides, bound, expected):
    found = resolve("rlanything", overrides).correction(bound)
    assert {key: getattr(found, key) for key in expected} == expected


# ---- the mends: fault under rlanything_paper, absence under rlanything ----


def test_mend_votes_over_the_task_keep_the_size_of_the_reward_that_one_step_cancels():
    # Two split steps in successful trajectories: R = 4/3 on one, 2/3 on the other.
    outcomes, votes = [1, 1, -1], [[[1, 1, -1]], [[1, -1, -1]], [[-1, -1, -1]]]
    paper = vote_credit(outcomes, votes, algorithm=PAPER).advantages
    assert paper[0][0][0] == pytest.approx(0.7071, abs=1e-4)
    assert paper[1][0][1] == pytest.approx(-0.7071, abs=1e-4)  # same size, half the reward
    ours = vote_credit(outcomes, votes, algorithm=DEFAULT).advantages
    assert ours[0][0][2] < ours[1][0][1] < 0.0 < ours[0][0][0]


def test_mend_a_unanimous_judge_learns_from_being_right_or_wrong():
    outcomes, votes = [1, -1], [[[1, 1, 1]], [[1, 1, 1]]]  # right, then wrong
    paper = vote_credit(outcomes, votes, algorithm=PAPER)
    assert {why for t in paper.reasons for s in t for why in s} == {"unanimous votes"}
    ours = vote_credit(outcomes, votes, algorithm=DEFAULT)
    assert ours.advantages == (((1.0, 1.0, 1.0),), ((-1.0, -1.0, -1.0),))


def test_mend_one_stray_vote_among_failures_is_not_blown_up_to_a_full_advantage():
    outcomes = [-1] * 8
    votes = [[[-1, -1, 1]]] + [[[-1, -1, -1]]] * 7
    assert step_credit(outcomes, votes, algorithm=PAPER).advantages[0][0] == pytest.approx(7**0.5)
    ours = step_credit(outcomes, votes, algorithm=DEFAULT).advantages
    assert ours[0][0] == pytest.approx((2 / 3) * (7 / 8) / 0.5)


def test_mend_the_floor_leaves_what_outcomes_alone_spread():
    one_of_eight = [[[1]]] * 8
    outcomes = [1] + [-1] * 7
    ours = step_credit(outcomes, one_of_eight, algorithm=resolve("rlanything", {"lam": 1e-6}))
    assert ours.advantages[0][0] == pytest.approx(7**0.5)


def test_mend_a_step_that_one_trajectory_reached_alone_is_worth_nothing():
    outcomes, votes = [1, -1], [[[1]], [[-1], [-1]]]
    paper = step_credit(outcomes, votes, algorithm=PAPER)
    assert (paper.advantages[1][1], paper.reasons[1][1]) == (-2.0, None)  # raw reward
    ours = step_credit(outcomes, votes, algorithm=DEFAULT)
    assert (ours.advantages[1][1], ours.reasons[1][1]) == (0.0, "lone step")


def test_mend_an_unparsable_vote_does_not_make_its_wrong_neighbours_look_good():
    outcomes, votes = [-1], [[[1, 1, 0]]]
    band = {"reward_band": "none"}
    paper = vote_credit(outcomes, votes, algorithm=resolve("rlanything_paper", band))
    assert paper.advantages[0][0] == pytest.approx((0.7071, 0.7071, -1.4142), abs=1e-4)
    ours = vote_credit(outcomes, votes, algorithm=resolve("rlanything", band))
    assert ours.advantages[0][0] == (0.0, 0.0, -1.0)


def test_mend_a_judge_that_only_answers_nonsense_is_penalised():
    outcomes, votes = [1, -1], [[[0, 0]], [[0, 0]]]
    paper = vote_credit(outcomes, votes, algorithm=PAPER)
    assert {a for t in paper.advantages for s in t for a in s} == {0.0}
    ours = vote_credit(outcomes, votes, algorithm=DEFAULT)
    assert {a for t in ours.advantages for s in t for a in s} == {-1.0}


def test_mend_a_vote_against_the_outcome_is_never_reinforced():
    # Mostly mild mistakes pull the task's mean below 0, above which the worst mistake then lies.
    outcomes, votes = [1, -1], [[[1, -1, -1], [-1, -1, -1]], [[1, -1, 1]]]
    task_scope = {"vote_scope": "task", "drop_unanimous": False}
    fault = vote_credit(outcomes, votes, algorithm=resolve("rlanything_paper", task_scope))
    assert min(fault.advantages[0][1]) > 0.0
    ours = vote_credit(outcomes, votes, algorithm=DEFAULT)
    assert ours.advantages[0][1] == (0.0, 0.0, 0.0)
    assert set(ours.reasons[0][1]) == {"vote without reward"}


def test_mend_the_reward_band_reads_the_accuracy_before_the_policy_filter():
    outcomes, votes = [1, -1, -1, -1], [[[1, -1]]] * 4  # accuracy 1/4
    band = {"policy_band": [0.4, 0.6]}
    paper = vote_credit(outcomes, votes, algorithm=resolve("rlanything_paper", band))
    assert {w for t in paper.reasons for s in t for w in s} == {"outside policy band"}
    ours = vote_credit(outcomes, votes, algorithm=resolve("rlanything", band))
    assert {w for t in ours.reasons for s in t for w in s} == {None}


def test_mend_only_a_fixed_anchor_feels_a_slow_drift():
    # A token's log-probability falls by 0.2 a step, eight steps long.
    felt = {}
    for preset in (PAPER, DEFAULT):
        initial = current = -1.0
        for _ in range(8):
            anchor = current if preset.kl_reference == "step_start" else initial
            current -= 0.2
            felt[preset.name] = float(_k3(preset, current, anchor))
    assert felt["rlanything_paper"] < 0.03  # one step's worth, however far the drift went
    assert felt["rlanything"] > 2.0


def _k3(preset, logprob, ref):
    import numpy as np

    kl = KL_ESTIMATORS[preset.kl_estimator]
    return kl(np.asarray(logprob), np.asarray(ref), clamp=preset.kl_clamp)


def test_mend_an_unchanged_task_is_seldom_accepted_as_a_rewrite():
    # True success .9 before and after; one group of 8 each, harder wanted.
    def chance(k):
        return math.comb(8, k) * 0.9**k * 0.1 ** (8 - k)

    published = ours = triggered = 0.0
    for before in range(7, 9):  # only these exceed alpha_high
        triggered += chance(before)
        for after in range(9):
            both = chance(before) * chance(after)
            published += both * paper_accepts("harder", before / 8, after / 8, 0.2, 0.8)
            result = decide(
                "harder", [(before, 8)], [(after, 8)], low=0.2, high=0.8, max_rollouts=8
            )
            ours += both * (result.verdict == "accept")
    assert published / triggered > 0.35
    assert ours / triggered < 0.05
