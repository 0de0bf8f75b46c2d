"""The weights of auxiliary objectives over time, and the draw of transitions."""

import pytest

from methods.envrl.arithmetic import draw_evenly
from methods.envrl.options import EnvRLOptions
from triforge.algorithms.schedules import scheduled_weight
from triforge.config import parse
from triforge.errors import ConfigError


@pytest.mark.parametrize(
    ("step", "weight"),
    [(0, 0.2), (1, 0.199978), (37, 0.171447), (75, 0.1), (112, 0.030034), (150, 0.0), (400, 0.0)],
)
def test_the_cosine_matches_its_goldens(step, weight):
    assert scheduled_weight(0.2, step, 150) == pytest.approx(weight, abs=5e-7)


def test_the_other_schedules_are_a_line_and_a_constant():
    line = [scheduled_weight(0.2, t, 150, "linear") for t in (0, 75, 150, 151)]
    assert line == pytest.approx([0.2, 0.1, 0.0, 0.0])
    assert [scheduled_weight(0.2, t, 150, "constant") for t in (0, 150, 999)] == [0.2] * 3


def test_tasks_are_drawn_from_evenly_however_long_their_episodes():
    tasks = ["long"] * 90 + ["short"] * 5 + ["lone"]
    drawn = draw_evenly(tasks, [False] * 96, limit=12, idle_cap=0.25, seed=3)
    counts = {name: sum(tasks[i] == name for i in drawn) for name in ("long", "short", "lone")}
    assert counts == {"long": 6, "short": 5, "lone": 1}
    assert drawn == sorted(set(drawn))


def test_the_share_of_idle_transitions_is_capped_also_when_few_others_are_left():
    idle = [True] * 60 + [False] * 6
    tasks = [str(i % 4) for i in range(66)]
    few = draw_evenly(tasks, idle, limit=40, idle_cap=0.25, seed=1)
    assert sum(idle[i] for i in few) == 2
    assert len(few) == 8
    none = draw_evenly(tasks, idle, limit=40, idle_cap=0.0, seed=1)
    assert sum(idle[i] for i in none) == 0
    assert len(none) == 6
    everything = draw_evenly(tasks, idle, limit=66, idle_cap=1.0, seed=1)
    assert everything == list(range(66))


def test_the_same_seed_draws_the_same_and_another_one_something_else():
    tasks = [str(i % 7) for i in range(200)]
    draws = [
        draw_evenly(tasks, [False] * 200, limit=20, idle_cap=0.25, seed=seed) for seed in (1, 1, 2)
    ]
    assert draws[0] == draws[1] != draws[2]
    assert draw_evenly([], [], limit=3, idle_cap=0.5, seed=0) == []


def test_the_weights_follow_the_steps_of_the_run():
    options = EnvRLOptions.model_validate({"sp": {"lambda0": 0.2}, "id": {"lambda0": 0.1}})
    assert options.weights(1, 150) == {"sp": 0.2, "id": 0.1}  # the first step is t = 0
    assert options.weights(76, 150) == pytest.approx({"sp": 0.1, "id": 0.05})
    assert options.weights(151, 150) == {"sp": 0.0, "id": 0.0}
    assert options.wanted
    assert not EnvRLOptions().wanted


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"sp": {"lambda0": 0.1}, "schedule": "constant", "t_max": 9}, "does not fall"),
        ({"measure": True, "noop_texts": [""]}, "begins with an empty one"),
        ({"sp": {"lambda0": -1}}, "greater than or equal to 0"),
        ({"noop_cap": 1.5}, "less than or equal to 1"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(changes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        parse({"methods": {"envrl": changes}})
