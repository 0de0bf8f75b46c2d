"""PA-RL: the critic's loss, its replay and its features of text."""

from __future__ import annotations

import numpy as np
import pytest

from methods.pa_rl.critic import (
    CriticEnsemble,
    CriticOptions,
    Replay,
    Transition,
    cal_ql,
    returns_of,
    text_features,
)
from triforge.errors import InputError

SMALL = CriticOptions(members=3, hidden=16, learning_rate=0.01, tau=0.05, batch=32)

# ---- the loss ----


def test_nothing_below_what_the_data_returned_is_pushed_down() -> None:
    sampled, taken = np.array([[0.2, 0.9], [0.4, 0.6]]), np.array([0.5, 0.5])
    values, targets = np.array([0.5, 0.5]), np.array([1.0, 0.0])
    found = cal_ql(sampled, taken, values, targets, alpha=0.4)
    assert found.loss == pytest.approx(0.4 * ((0.5 + 0.9 + 0.5 + 0.6) / 4 - 0.5) + 0.25)
    assert found.by_sampled.tolist() == [[0.0, 0.1], [0.0, 0.1]]
    assert found.by_taken == pytest.approx([-0.5 - 0.2, 0.5 - 0.2])
    assert found.pushed == 0.5
    below = cal_ql(sampled, taken, np.array([2.0, 2.0]), targets, alpha=0.4)
    assert below.pushed == 0.0
    assert not below.by_sampled.any(), "the calibration holds all of them"
    plain = cal_ql(sampled, taken, values, targets, alpha=0.0)
    assert plain.loss == pytest.approx(0.25), "the TD error alone"


def transitions(count: int, rng: np.random.Generator, width: int = 3) -> list[Transition]:
    return [
        Transition(
            rng.normal(size=width), rng.normal(size=(2, width)),
            rng.normal(size=(2, width)) if n % 2 else None, float(rng.normal()), float(rng.normal()),
        )
        for n in range(count)
    ]  # fmt: skip


def test_updates_lower_the_loss_and_a_saved_ensemble_goes_on_alike() -> None:
    rng = np.random.default_rng(3)
    batch = transitions(32, rng)
    critic = CriticEnsemble(3, SMALL, seed=4)
    first = critic.update(batch, np.random.default_rng(0))
    for _ in range(60):
        last = critic.update(batch, np.random.default_rng(0))
    assert last["td_error"] < first["td_error"]
    assert last["overestimate"] == pytest.approx(last["value_mean"] - last["return_mean"])
    again = CriticEnsemble.restored(critic.saved(), SMALL)
    rows = np.stack([t.taken for t in batch])
    for one in (critic, again):
        one.update(batch, np.random.default_rng(5))
    assert (again.values(rows) == critic.values(rows)).all()
    for broken in (b"", b"PK\3\4 no", critic.saved()[:200]):
        with pytest.raises(InputError, match="no saved ensemble"):
            CriticEnsemble.restored(broken, SMALL)
    with pytest.raises(InputError, match="no saved ensemble"):
        CriticEnsemble.restored(critic.saved(), CriticOptions(hidden=5))


def test_conservatism_lowers_what_the_data_never_did() -> None:
    rng, done, not_done = np.random.default_rng(6), np.array([0.0, 1.0]), np.array([1.0, 0.0])
    batch = [Transition(done, np.stack([done, not_done]), None, 0.5, 0.5) for _ in range(8)]
    batch.append(Transition(done, np.stack([done]), None, 0.5, 0.5))  # a state that one rollout saw
    found = []
    for alpha in (0.0, 1.0):
        critic = CriticEnsemble(2, CriticOptions(members=4, learning_rate=0.01, alpha=alpha))
        critic.weights["b2"] += 2.0  # it begins too high everywhere
        for _ in range(40):
            critic.update(batch, rng)
        found.append(float(critic.values(np.array([[1.0, 0.0]]))[0]))
    assert found[1] < found[0]


# ---- replay and actions ----


def test_batches_are_drawn_from_both_partitions() -> None:
    rng = np.random.default_rng(0)
    old, new = transitions(2, rng)
    with pytest.raises(InputError, match="no transitions"):
        Replay().draw(1, 0.5, rng)
    both = Replay([old])
    assert both.draw(3, 0.5, rng) == [old] * 3, "nothing of its own yet"
    both.online.append(new)
    drawn = both.draw(400, 0.5, rng)
    assert 150 < sum(one is new for one in drawn) < 250
    both.offline = []
    assert both.draw(2, 0.5, rng) == [new] * 2


def test_returns_are_discounted() -> None:
    assert returns_of([1.0, 0.0, 2.0], 0.5) == [1.5, 1.0, 2.0]


def test_features_of_text_tell_actions_states_and_order_apart() -> None:
    one = text_features("a red door", "go north")
    assert float(np.linalg.norm(one)) == pytest.approx(1.0)
    for other in (
        ("a blue door", "go north"),
        ("a red door", "go south"),
        ("a red door", "north go"),
    ):
        assert not np.allclose(one, text_features(*other))
    assert (one == text_features("a red door", "go north")).all()
    assert not text_features("a", "").any()
