"""PA-RL: the critic's loss, what is done with its values, and a policy that it improves over behaviour cloning."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import pytest

from methods.pa_rl.critic import (
    CriticEnsemble,
    CriticOptions,
    Floats,
    Replay,
    Transition,
    cal_ql,
    returns_of,
    text_features,
)
from triforge.algorithms.jobs.imitation import best_of
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


# ---- a policy that writes words, with edits ----

ITEMS, SIDES = ("mug", "pan", "bed", "box"), ("north", "south", "west", "east")
VERBS, PLACES = ("take", "wash", "make", "open"), ("up", "down", "left", "right")
STATES = [f"item {i} on side {r}" for i, r in product(ITEMS, SIDES)]


@cache
def seen(state: str, action: str) -> Floats:
    return text_features(state, action, 128)


class Writing:
    """A verb and a place; the item says which verb is right, the side which place, half of the reward each."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.verb = {s: np.full(4, 0.25) for s in STATES}
        self.place = {(s, v): np.full(4, 0.25) for s in STATES for v in VERBS}
        self.critic = CriticEnsemble(128, SMALL, seed=seed)
        self.replay = Replay()

    @staticmethod
    def right(state: str) -> tuple[str, str]:
        _, item, _, _, side = state.split()
        return VERBS[ITEMS.index(item)], PLACES[SIDES.index(side)]

    def earned(self, state: str, action: str) -> float:
        return sum(0.5 * (a == b) for a, b in zip(action.split(), self.right(state), strict=True))

    def write(self, state: str, verb: str = "") -> str:
        """An action, word after word; with a verb only its tail is sampled."""
        verb = verb or VERBS[self.rng.choice(4, p=self.verb[state])]
        return f"{verb} {PLACES[self.rng.choice(4, p=self.place[state, verb])]}"

    def features(self, state: str, actions: list[str]) -> Floats:
        return np.stack([seen(state, action) for action in actions])

    def improved(self, state: str) -> tuple[list[str], list[float]]:
        """The best of K, then edits of the best one that are taken only if the critic finds them better."""
        actions = [self.write(state) for _ in range(6)]
        values = [*self.critic.values(self.features(state, actions))]
        for _ in range(3):
            at = int(np.argmax(values))
            edit = self.write(state, actions[at].split()[0])
            value = float(self.critic.values(self.features(state, [edit]))[0])
            if value > values[at]:
                actions[at], values[at] = edit, value
        return actions, values

    def played(self, state: str, action: str) -> Transition:
        reward = self.earned(state, action)
        others = [self.write(state) for _ in range(2)]
        (taken,) = self.features(state, [action])
        return Transition(taken, self.features(state, others), None, reward, reward)

    def learn(self, updates: int) -> None:
        for _ in range(updates):
            self.critic.update(self.replay.draw(32, 0.5, self.rng), self.rng)

    def imitate(self, state: str, action: str, share: float) -> None:
        """A step of cross-entropy on each word's distribution."""
        verb, place = action.split()
        for table, word in (
            (self.verb[state], VERBS.index(verb)), (self.place[state, verb], PLACES.index(place)),
        ):  # fmt: skip
            table *= 1.0 - share
            table[word] += share

    def distil(self) -> None:
        for state in STATES:
            actions, values = self.improved(state)
            shares = best_of(values, temperature=0.1)
            for action, share in zip(actions, shares, strict=True):
                self.imitate(state, action, 0.5 * share)

    def reward(self) -> float:
        """Expected reward of the policy."""
        found = 0.0
        for state in STATES:
            verb, place = self.right(state)
            found += 0.5 * float(self.verb[state][VERBS.index(verb)])
            for chance, v in zip(self.verb[state], VERBS, strict=True):
                found += 0.5 * float(chance * self.place[state, v][PLACES.index(place)])
        return found / len(STATES)


@pytest.mark.parametrize("seed", range(5))
def test_a_policy_of_words_gains_over_cloning_offline_and_then_online(seed: int) -> None:
    world = Writing(seed)
    offline_data = list[Transition]()
    for state in STATES * 12:  # the data: random words
        action = world.write(state)
        offline_data.append(world.played(state, action))
        world.imitate(state, action, 0.02)
    world.replay.offline = offline_data
    cloned = world.reward()
    world.learn(150)
    for _ in range(4):
        world.distil()
    offline = world.reward()
    assert offline > cloned + 0.1
    for _ in range(2):
        for state in STATES:
            actions, values = world.improved(state)
            world.replay.online.append(world.played(state, actions[int(np.argmax(values))]))
        world.learn(40)
        world.distil()
    assert world.reward() > cloned + 0.15
