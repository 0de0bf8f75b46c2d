"""The critic's model: the backbone of a model folder, and one layer that makes a number of each hidden state.

It reads the same forward passes as the policy. The value of a token is that of the state it was chosen in, so it is read
where the policy's log-probability is: at the token before it. The layer begins at 0, and so do all values.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from services.trainer.model import ScoringModel, compute_again, load_into
from services.trainer.step_cost import Shape
from services.trainer.token_batches import TokenBatch
from services.trainer.vision import Seeing
from triforge.errors import ConfigError
from triforge.store.images import ImageStore


class ValueModel(nn.Module):
    """From a batch to one value a scored token.

    Args:
        body: gives hidden states [B, T, d].
        width: d.
        shape: what a pass costs.
        eyes: the body as a model that sees images is called; None is the body itself.

    Attributes:
        dtype: of the body's matrix products; the weights, and the last layer, are float32.
    """

    def __init__(
        self, body: nn.Module, width: int, shape: Shape, eyes: Seeing | None = None
    ) -> None:
        super().__init__()
        self.body, self._eyes = body, eyes
        with torch.random.fork_rng(devices=[]):  # what is drawn here is thrown away
            self.head = nn.Linear(width, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.shape, self.dtype = shape, torch.float32

    @staticmethod
    def over(
        folder: Path,
        device: torch.device,
        tensors: dict[str, Tensor] | None = None,
        images: ImageStore | None = None,
    ) -> ValueModel:
        """The backbone of a model folder, with the values of a checkpoint if there are any.

        One that sees reads the pixels of its rows from `images`.

        Raises:
            ConfigError: the model does not show its hidden states.
            WeightsError: the folder is not a complete model folder, or the tensors are those of another model.
        """
        scoring = ScoringModel.load(folder)
        model: Any = scoring.module
        if model.base_model is model:
            raise ConfigError(
                f"algorithm.overrides.estimator: 'gae' and 'bilevel_gae' need a critic, and none can be made of "
                f"{type(model).__name__} ({folder}): it does not show its hidden states; choose an estimator without a critic"
            )
        width = int(model.config.get_text_config().hidden_size)
        # The output layer stays behind; a value costs a row of it.
        shape, sight = replace(scoring.shape, head=width), scoring.sight
        eyes = None if sight is None else Seeing(model.base_model, sight, images)
        made = ValueModel(model.base_model, width, shape, eyes)
        if tensors is not None:
            load_into(made, tensors, where=f"critic over {folder}")
        return made.to(device)

    def compute(self, dtype: torch.dtype, *, checkpointing: bool) -> None:
        """Say how the passes from now on are computed."""
        self.dtype = dtype
        compute_again(self.body, on=checkpointing)

    def forward(self, batch: TokenBatch) -> Tensor:
        """Values [N], float32, with gradient."""
        inputs: dict[str, Any] = {"input_ids": batch.ids, "use_cache": False, **batch.inputs}
        if batch.layout is not None:
            inputs |= {"position_ids": batch.positions, "layout": batch.layout}
        narrow = self.dtype != torch.float32
        with torch.autocast(batch.ids.device.type, dtype=torch.bfloat16, enabled=narrow):
            hidden = (self._eyes or self.body)(**inputs).last_hidden_state
        picked = hidden.reshape(-1, hidden.shape[-1])[batch.predict].float()
        values: Tensor = self.head(picked)[:, 0]
        return values
