"""The critic of a policy: its targets, the weights it touches, and that a killed learner goes on to the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from services.trainer.learner.checkpoint import CheckpointStore
from services.trainer.learner.critic import Critic
from services.trainer.learner.learner import Learner
from services.trainer.learner.model.lora import LoraShape
from services.trainer.learner.model.token_batches import TokenBatch
from services.trainer.learner.step_cost import Shape
from services.trainer.learner.training_data import StepData
from services.trainer.learner.weights.tensors import load_tensors, model_tensors
from tests.unit.trainer.conftest import VERSION, MakeBatch
from triforge.config import LearnerSection
from triforge.errors import ConfigError, TrainerError
from triforge.store.artifacts import ArtifactStore
from triforge.store.weight_folders import version_name
from triforge.types import TrainRow

GAE: dict[str, Any] = {"estimator": "gae"}
NO_KL = {"kl_beta": 0.0}
ENDS = {"updates_per_step": 1}
GOLDEN = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
BOTH = [1.85, 1.75, 1.65, 1.55, 1.45, 0.4, 0.3, 0.2, 0.1, 0.0]
LAST = [0.85, 0.75, 0.65, 0.55, 0.45, 0.4, 0.3, 0.2, 0.1, 0.0]


def wrote(
    key: str, turns: list[int], rewards: list[float], *, begin: int = 6, logprob: float = -2.0
) -> TrainRow:
    """A row of turns of so many tokens, one token of the environment before each; turn i brought `rewards[i]`."""
    ids, weights, brought, ends = list[int](), list[float](), list[float](), list[int]()
    for turn, reward in zip(turns, rewards, strict=True):
        ids += [begin, *(7 + (len(ids) + k) % 8 for k in range(turn))]
        weights += [0.0, *[0.1] * turn]
        brought += [0.0] * turn + [reward]
        ends.append(len(ids) - 1)
    n = len(ids)
    return TrainRow(
        key=key, ids=tuple(ids), weights=tuple(weights), logprobs=(logprob,) * n, advantages=(0.0,) * n,
        versions=(VERSION,) * n, task_id="t", rewards=tuple(brought), ends=tuple(ends),
    )  # fmt: skip


class Table(nn.Module):
    """A critic with fixed values, in the order of the step's tokens."""

    def __init__(self, values: list[float]) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.tensor(values))
        self.shape = Shape(blocks=0, head=0, attention=0, backward=2.0)

    def compute(self, dtype: torch.dtype, *, checkpointing: bool) -> None:
        """There is nothing to compute."""

    def forward(self, batch: TokenBatch) -> Tensor:
        return self.values[torch.from_numpy(batch.cells)]


def fixed(folder: Path, values: list[float]) -> Learner:
    """A learner whose critic is a table."""
    learner = Learner.fresh(folder)
    table: Any = Table(values)
    critic_of(learner).use(table)
    return learner


def critic_of(learner: Learner) -> Critic:
    found = learner.objective("critic")
    assert isinstance(found, Critic)
    return found


def weights_of(learner: Learner) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return copies of the tensors of policy and critic."""
    critic = critic_of(learner).saved().tensors["critic"]
    return model_tensors(learner.model.module) | {}, critic | {}


def copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in tensors.items()}


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# ---- what it teaches and learns ----


@pytest.mark.parametrize(
    ("critic", "rows", "values", "advantages"),
    [
        (GAE, [wrote("t/0", [3], [1.0])], [0.1, 0.2, 0.3], [0.9, 0.8, 0.7]),
        (GAE | {"gamma": 0.99, "gae_lam": 0.95}, [wrote("t/0", [3], [1.0])], [0.1, 0.2, 0.3], [0.808407, 0.75535, 0.7]),
        (GAE, [wrote("t/0", [1, 2], [0.0, 1.0])], [0.1, 0.2, 0.3], [0.9, 0.8, 0.7]),
        (GAE, [wrote("t/1", [1], [1.0]), wrote("t/0", [2], [0.0])], [0.3, 0.1, 0.2], [0.7, 0.9, 0.8]),
        ({"estimator": "bilevel_gae", "turn_gamma": 0.95}, [wrote("t/0", [5, 5], [1.0, 1.0])], GOLDEN, BOTH),
        ({"estimator": "bilevel_gae", "turn_gamma": 0.95}, [wrote("t/0", [5, 5], [0.0, 1.0])], GOLDEN, LAST),
        ({"estimator": "bilevel_gae", "turn_gamma": 0.95}, [wrote("t/0", [5], [0.0]), wrote("t/1", [5], [1.0])], GOLDEN, LAST),
    ],
    ids=["gae", "discounted", "across a gap", "across rows in any order", "two turns", "one reward", "a row a turn"],
)  # fmt: skip
def test_advantages_and_losses_match_the_goldens(
    critic: dict[str, Any],
    rows: list[TrainRow],
    values: list[float],
    advantages: list[float],
    model_folder: Path,
    make_batch: MakeBatch,
) -> None:
    """With ratio 1 the policy's loss is `-sum(w * A)`; before its first step the critic's is `mean(A^2) / 2`."""
    learner = fixed(model_folder, values)
    batch = make_batch(num_rows=len(rows), estimate=critic, log_ratio_clamp=1e-9, **NO_KL, **ENDS)
    found = learner.train(batch, rows).metrics
    golden = torch.tensor(advantages)
    assert found["loss"] == pytest.approx(-0.1 * float(golden.sum()), abs=1e-5)
    assert found["critic/loss"] == pytest.approx(float(golden.square().mean()) / 2, abs=1e-6)
    returns = golden + torch.tensor(values)
    assert found["critic/return_mean"] == pytest.approx(float(returns.mean()), abs=1e-6)
    left, spread = (float(v.var(correction=0)) for v in (golden, returns))
    wanted = 1 - left / spread if spread > 1e-9 else 0.0
    assert found["critic/explained_variance"] == pytest.approx(wanted, rel=1e-4, abs=1e-4)


def test_whitened_advantages_have_no_mean_and_the_returns_stay_as_they_were(
    model_folder: Path, make_batch: MakeBatch
) -> None:
    learner = fixed(model_folder, [0.1, 0.2, 0.3])
    batch = make_batch(
        num_rows=1, estimate=GAE | {"whiten": True}, log_ratio_clamp=1e-9, **NO_KL, **ENDS
    )
    found = learner.train(batch, [wrote("t/0", [3], [1.0])]).metrics
    assert found["loss"] == pytest.approx(0.0, abs=1e-6)
    assert found["critic/return_mean"] == pytest.approx(1.0)


def test_a_kl_in_the_reward_is_taken_off_what_each_token_brought(
    model_folder: Path, make_batch: MakeBatch
) -> None:
    """At its first step the policy is its own anchor, so with k1 a token costs `beta * (behaviour - its own)`."""
    row = wrote("t/0", [3], [1.0])
    options = {
        "estimate": GAE,
        "kl_placement": "reward",
        "kl_estimator": "k1",
        "kl_clamp": None,
        **ENDS,
    }
    free, charged = (
        fixed(model_folder, [0.0] * 3)
        .train(make_batch(num_rows=1, **options, kl_beta=beta), [row])
        .metrics["critic/return_mean"]
        for beta in (1e-12, 0.5)
    )
    learner = Learner.fresh(model_folder)
    sequences = learner.model
    data = StepData.from_rows([row], max_tokens=99, vocabulary=99, version=VERSION)
    scores, _ = sequences.score(sequences.batch(data.sequences, [0]), 1.0)
    kl = -2.0 - scores.detach()
    # Token t is charged for itself and what comes after: once, twice, three times.
    cost = 0.5 * float((kl * torch.tensor([1.0, 2.0, 3.0])).sum()) / 3
    assert free == pytest.approx(1.0)
    assert charged == pytest.approx(1.0 - cost, abs=1e-5)


def test_values_come_to_the_discounted_returns_of_a_chain(
    model_folder: Path, make_batch: MakeBatch
) -> None:
    """Two chains begin alike; one ends with 1, the other with 0. By bootstrapping alone (lam 0) their common part comes to
    the mean of what follows, discounted a token."""
    gamma = 0.8
    rows = [wrote("a/0", [3, 2], [0.0, 1.0]), wrote("b/0", [3, 2], [0.0, 0.0])]
    ids = list(rows[1].ids)
    ids[4] = 14  # the environment says something else before the second turn
    rows[1] = rows[1].model_copy(update={"ids": tuple(ids)})
    learner = Learner.fresh(model_folder)
    for step in range(1, 41):
        batch = make_batch(
            step=step, num_rows=2, job="critic", estimate=GAE | {"gamma": gamma, "gae_lam": 0.0},
            critic={"learning_rate": 1e-2 if step < 30 else 2e-3}, epochs=5, **NO_KL, **ENDS,
        )  # fmt: skip
        metrics = learner.train(batch, rows).metrics
    data = StepData.from_rows(rows, max_tokens=99, vocabulary=99, version=VERSION)
    model = critic_of(learner).value_model
    assert model is not None
    values = model(learner.model.batch(data.sequences, [0, 1])).tolist()
    shared = [0.5 * gamma**k for k in (4, 3, 2)]
    assert values == pytest.approx([*shared, gamma, 1.0, *shared, 0.0, 0.0], abs=0.05)
    assert metrics["critic/explained_variance"] > 0.5
    assert learner.counters.updates == 0


def test_a_clip_holds_the_values_near_the_old_ones_and_is_counted(
    model_folder: Path, make_batch: MakeBatch
) -> None:
    rows = [wrote("t/0", [4], [1.0])]
    options: dict[str, Any] = {"num_rows": 1, "epochs": 12, "job": "critic", **NO_KL, **ENDS}
    rate = {"critic": {"learning_rate": 0.05}}
    ends = []
    for clip in (0.1, None):
        learner = fixed(model_folder, [0.0] * 4)
        found = learner.train(
            make_batch(**options, **rate, estimate=GAE | {"value_clip": clip}), rows
        ).metrics
        ends.append(critic_of(learner).saved().tensors["critic"]["values"].max())
        assert (found["critic/clip_share"] > 0.3) == (clip is not None)
    assert ends[0] < 0.45 < ends[1]  # the optimiser's momentum carries on for a while


# ---- what it touches ----


def test_no_gradient_goes_from_the_one_to_the_other(
    model_folder: Path, make_batch: MakeBatch
) -> None:
    rows = [wrote("a/0", [3, 2], [0.0, 1.0]), wrote("b/0", [2, 3], [0.0, 0.0])]
    learner = Learner.fresh(model_folder)
    options = {"num_rows": 2, "estimate": GAE | {"whiten": True}, **NO_KL, **ENDS}
    learner.train(make_batch(step=1, critic={"alone_steps": 1}, **options), rows)
    policy, critic = (copied(t) for t in weights_of(learner))
    start = model_tensors(Learner.fresh(model_folder).model.module)
    assert equal(policy, start)  # the critic's own step left the policy's bits alone
    assert float(critic["head.weight"].abs().max()) > 0.0
    assert learner.counters.updates == 0

    # An infinitesimal step of the critic does not round to nothing of the policy's: advantages alone couple the two.
    learner.train(make_batch(step=2, critic={"learning_rate": 1e-30}, **options), rows)
    moved, left = weights_of(learner)
    assert equal(left, critic)
    assert not equal(moved, policy)
    assert not {id(p) for p in learner.model.parameters().values()} & {
        id(p)
        for p in critic_of(learner).value_model.parameters()  # type: ignore[union-attr]
    }


def test_the_policy_is_trained_with_it_as_by_the_same_advantages_without_it(
    model_folder: Path, make_batch: MakeBatch
) -> None:
    """At its first step all values are 0, so without discount each token's advantage is what its trajectory still brings."""
    rows = [wrote("a/0", [3, 2], [0.5, 1.0]), wrote("b/0", [2, 3], [0.0, 0.0])]
    plain = []
    for row, worth in zip(rows, ([1.5] * 4 + [1.0] * 3, [0.0] * 7), strict=True):
        plain.append(row.model_copy(update={"advantages": tuple(worth), "rewards": (), "ends": ()}))
    one, other = Learner.fresh(model_folder), Learner.fresh(model_folder)
    one.train(make_batch(num_rows=2, estimate=GAE, **ENDS), rows)
    other.train(make_batch(num_rows=2, **ENDS), plain)
    assert equal(model_tensors(one.model.module), model_tensors(other.model.module))


def test_the_split_into_passes_changes_the_critic_by_nothing_but_last_bits(
    model_folder: Path, make_batch: MakeBatch
) -> None:
    rows = [wrote(f"{n}/0", [3, 2 + n], [0.0, float(n % 2)]) for n in range(6)]
    found = []
    for budget in (1000, 12):
        learner = Learner.fresh(model_folder)
        for step in (1, 2):
            learner.train(
                make_batch(step=step, num_rows=6, estimate=GAE, token_budget=budget, **NO_KL), rows
            )
        found.append(copied(weights_of(learner)[1]))
    for name, value in found[0].items():
        assert torch.allclose(value, found[1][name], atol=1e-6), name


# ---- going on ----


@pytest.mark.parametrize("adapter", [None, LoraShape(rank=2, alpha=4)], ids=["full", "lora"])
def test_a_learner_that_goes_on_from_its_checkpoint_comes_to_the_same_bits(
    adapter: LoraShape | None, tmp_path: Path, model_folder: Path, make_batch: MakeBatch
) -> None:
    lora = {"lora_rank": 2, "lora_alpha": 4} if adapter else {}
    ends = []
    for run, forgets in (("straight", False), ("resumed", True)):
        checkpoints = CheckpointStore(ArtifactStore(str(tmp_path / run)), "run", "policy")
        learner = Learner.fresh(model_folder, shape=adapter)
        for step in (1, 2, 3):
            rows = [wrote(f"{n}/0", [3, 2 + n], [0.1 * step, float(n % 2)]) for n in range(5)]
            batch = make_batch(
                step=step, version=VERSION + step - 1, num_rows=5, estimate=GAE | {"value_clip": 0.2},
                critic={"alone_steps": 1, "warmup_updates": 6, "learning_rate": 1e-2}, **lora,
            )  # fmt: skip
            checkpoints.publish(learner, batch, learner.train(batch, rows), keep=5)
            if forgets:
                learner = checkpoints.load(VERSION + step, model_folder, adapter)
        name = version_name(VERSION + 3)
        (folder,) = checkpoints.checkpoints.glob(f"{name}-*")
        files = sorted(folder.glob("*.safetensors"))
        assert [f.name for f in files] == [
            "critic.safetensors",
            "critic_optimizer.safetensors",
            "optimizer.safetensors",
        ]
        (served,) = (checkpoints.weights / name).glob("*.safetensors")
        assert not any("head.bias" in key or "body." in key for key in load_tensors(served))
        assert not any("lora" in key for key in load_tensors(files[0])), (
            "the critic is trained whole"
        )
        state = (folder / "state.json").read_text()
        ends.append([served.read_bytes(), state, *(f.read_bytes() for f in files)])
    assert ends[0] == ends[1]


def test_a_run_that_began_without_a_critic_has_none_to_go_on_with(
    model_folder: Path, make_batch: MakeBatch
) -> None:
    learner = Learner.fresh(model_folder)
    row = wrote("a/0", [3], [1.0]).model_copy(update={"advantages": (1.0,) * 4})
    learner.train(make_batch(step=1, num_rows=1, **NO_KL), [row])
    with pytest.raises(ConfigError, match="the checkpoint of this run has no critic"):
        learner.train(make_batch(step=2, num_rows=1, estimate=GAE, **NO_KL), [row])


# ---- bad rows ----


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rewards": (), "ends": ()}, "expected rows that say what their tokens brought"),
        ({"rewards": (0.0,)}, "given 1 rewards, expected 4 finite ones"),
        ({"rewards": (0.0, 0.0, 0.0, float("nan"))}, "expected 4 finite ones"),
        ({"ends": (2,)}, r"the last of which \(3\) ends a turn"),
        ({"ends": (0, 3)}, "expected places of tokens that are trained on"),
    ],
    ids=["nothing", "too few", "not finite", "open end", "an end of nothing"],
)
def test_rows_that_do_not_say_what_their_tokens_brought_are_refused(
    changes: dict[str, Any], sentence: str, model_folder: Path, make_batch: MakeBatch
) -> None:
    row = wrote("a/0", [3], [1.0]).model_copy(update=changes)
    with pytest.raises(TrainerError, match=sentence):
        Learner.fresh(model_folder).train(make_batch(num_rows=1, estimate=GAE, **NO_KL), [row])


def test_a_critic_is_trained_in_half_precision_with_blocks_computed_again(
    model_folder: Path, make_batch: MakeBatch
) -> None:
    """Checkpointing changes no weight; half precision changes the loss by little."""
    rows = [wrote(f"{n}/0", [3, 2], [0.0, float(n % 2)]) for n in range(4)]
    weights, losses = [], []
    for options in ({}, {"activation_checkpointing": True}, {"precision": "bfloat16"}):
        learner = Learner.fresh(model_folder)
        for step in (1, 2, 3, 4):
            section = {"learning_rate": 1e-3, "updates_per_step": 2, **options}
            batch = make_batch(
                step=step, num_rows=4, estimate=GAE, critic={"learning_rate": 0.01}, **NO_KL
            )
            found = learner.train(
                batch.model_copy(update={"learner": LearnerSection.model_validate(section)}), rows
            ).metrics
        weights.append(copied(weights_of(learner)[1]))
        losses.append(found["critic/loss"])
    for name, value in weights[0].items():
        assert torch.allclose(value, weights[1][name], atol=1e-5), name
    assert losses[0] < 0.9 * 0.25  # half of the tokens are worth 1, so it began at 0.25
    assert losses[2] == pytest.approx(losses[0], rel=0.1)
    assert losses[2] != losses[0]


def test_the_job_critic_needs_one(model_folder: Path, make_batch: MakeBatch) -> None:
    with pytest.raises(ConfigError, match="job: given 'critic' with estimator = 'step_index'"):
        Learner.fresh(model_folder).train(
            make_batch(num_rows=1, job="critic"), [wrote("a/0", [1], [1.0])]
        )
