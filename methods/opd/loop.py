"""Hooks of the training loop: the teacher has the policy's tokenizer, and each token its own advantage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from methods.opd.credit import token_scores, with_token_scores
from services.trainer.credit.samples import Samples
from services.trainer.loop.hooks import LoopHooks, Measures, MethodContext
from triforge.chat_template import read_text, tokenizer_of
from triforge.errors import ConfigError
from triforge.types import JudgedGroup, TrainRow


class Opd(LoopHooks):
    """Gives the tokens of the policy's rows the advantages that the teacher's scores ask for."""

    def __init__(self, run: MethodContext, options: object) -> None:
        super().__init__(run, options)
        models = run.config.models
        demand_one_tokenizer(models.policy.path, models.reward.path)
        self._measures: Measures = {}

    async def more_samples(
        self, step: int, groups: Sequence[JudgedGroup], samples: Samples
    ) -> list[TrainRow]:
        """Replace the advantages of the step's rows; repeated, it gives the same rows from the same samples."""
        lam, rows = self.run.config.algorithm.resolved.lam, samples.rows["policy"]
        found = token_scores(groups, self.run.name)
        scored = [(row, found.get(row.key, [])) for row in rows]
        samples.rows["policy"] = [with_token_scores(*pair, lam) for pair in scored]
        trained = [
            d for row, own in scored for at, tokens in own if row.weights[at] for d in tokens
        ]
        self._measures = {"opd/reverse_kl": -fmean(trained)} if trained else {}
        return []

    async def measure(self, step: int, groups: Sequence[JudgedGroup], samples: Samples) -> Measures:
        """Return the reverse KL of the policy from the teacher, in nats a trained token."""
        return self._measures


def demand_one_tokenizer(policy: str, teacher: str) -> None:
    """Raise ConfigError unless both model folders give every token the same id."""
    mine, theirs = (
        tokenizer_of(read_text(Path(folder) / "tokenizer.json")).get_vocab(with_added_tokens=True)
        for folder in (policy, teacher)
    )
    apart = sorted(t for t in mine.keys() | theirs.keys() if mine.get(t) != theirs.get(t))
    if apart:
        one = apart[0]
        raise ConfigError(
            f"models.reward.path: given {teacher!r}, whose tokenizer differs from that of models.policy.path = {policy!r} in "
            f"{len(apart)} of {len(mine)} tokens ({one!r} is {theirs.get(one)} and {mine.get(one)}), expected the same: the "
            "teacher of reward.kind = 'opd' scores the policy's own ids; take a teacher of the policy's family"
        )
