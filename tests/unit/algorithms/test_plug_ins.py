"""Estimators and losses of a user, named by their path; and the errors of parts that cannot be found."""

from collections.abc import Iterator

import numpy as np
import pytest
from pydantic import Field

from tests.rollouts import step_credit
from triforge.algorithms.advantages import ScoredRows, compared, over_steps
from triforge.algorithms.algorithm import Algorithm, resolve
from triforge.algorithms.core import CoreOptions
from triforge.algorithms.estimators import Group, estimator
from triforge.algorithms.losses import TokenLoss, Tokens, loss
from triforge.algorithms.registry import NoOptions, Options
from triforge.config import parse
from triforge.errors import ConfigError

HERE = __name__


class LastOptions(Options):
    scale: float = Field(1.0, gt=0, le=10)
    """What the advantage is multiplied with."""

    def conflicts(self, algorithm: CoreOptions) -> Iterator[tuple[bool, str]]:
        yield algorithm.whiten, "estimator: given with whiten = true, allowed only without"


@estimator("last_step", LastOptions)
def last_step(group: Group, algorithm: CoreOptions, options: LastOptions) -> ScoredRows:
    """Trajectories by their last reward."""
    last = [
        row[-1] * options.scale if row and row[-1] is not None else None for row in group.rewards
    ]
    return over_steps(group.rewards, compared(last, algorithm))


@estimator("unscaled", reads=())
def unscaled(group: Group, algorithm: CoreOptions, options: NoOptions) -> ScoredRows:
    """Rewards as they are, whatever the options of comparison."""
    return ScoredRows(
        tuple(tuple(r or 0.0 for r in row) for row in group.rewards),
        tuple((None,) * len(row) for row in group.rewards),
    )


class PlainOptions(Options):
    margin: float = Field(0.5, ge=0)
    """Taken off."""


@loss("plain", PlainOptions)
def plain(tokens: Tokens, options: PlainOptions) -> TokenLoss:
    return TokenLoss(
        options.margin - tokens.advantages * tokens.logprobs, tokens.logprobs - tokens.prox
    )


OVERRIDES = {
    "estimator": f"{HERE}:last_step",
    "scale": 2.0,
    "loss": f"{HERE}:plain",
    "margin": 0.25,
}
RAW = {"std_floor": 0.0, "normalise": "mean"}


def test_parts_of_another_package_are_used_with_their_own_options_and_survive_the_wire():
    found = resolve("grpo", OVERRIDES | RAW)
    assert (found.estimator_options, found.loss_options) == (
        LastOptions(scale=2.0),
        PlainOptions(margin=0.25),
    )
    assert Algorithm.model_validate_json(found.model_dump_json()) == found
    credit = step_credit([1, -1], [[[]], [[]]], algorithm=found)
    assert credit.advantages == ((2.0,), (-2.0,))
    one = np.ones(1)
    loss = found.token_loss(Tokens(logprobs=-one, prox=-one, advantages=one))
    assert loss.values.tolist() == [1.25]
    assert parse({"algorithm": {"preset": "grpo", "overrides": OVERRIDES}}).algorithm.resolved


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"scale": 2.0}, "unknown option 'scale'"),
        (OVERRIDES | {"scale": 0}, "scale: given 0, allowed a number above 0 to 10"),
        (OVERRIDES | {"whiten": True}, "estimator: given with whiten = true"),
        ({"estimator": f"{HERE}:unscaled", "std_ddof": 1}, "std_ddof: given 1, allowed only with normalise = 'std'"),
        ({"estimator": f"{HERE}:unscaled", "normalise": "mean"}, "given 'mean', allowed only with an estimator that"),
        ({"estimator": "nowhere:part"}, "given 'nowhere:part' .No module named 'nowhere'.*allowed one of"),
        ({"estimator": f"{HERE}:plain"}, "it is no Estimator"),
        ({"loss": "os:system"}, "it is no Loss"),
        ({"loss": "trpo"}, r"loss: given 'trpo', allowed one of \['cispo', 'gspo'"),
    ],
)  # fmt: skip
def test_what_cannot_be_found_or_used_is_refused_with_the_reason(overrides, sentence):
    with pytest.raises(ConfigError, match=sentence):
        resolve("grpo", overrides)
