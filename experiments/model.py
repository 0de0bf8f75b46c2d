"""A model in this process, asked like a policy service."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import torch
from torch import Tensor

from services.local_engine.detokenize import TextCodec
from services.local_engine.engine import Engine
from services.local_engine.generate import result_of
from services.local_engine.model import load_model, stage_tensors
from services.local_engine.request import Prompt, SamplingParams, parse_sampling
from services.local_engine.scheduler import Limits
from services.policy.sglang_parsing import sample_of, sampling_params
from triforge.errors import ContextFullError, InputError
from triforge.rendering import Renderer
from triforge.types import ChatMessage, GenerateReply, GenerateRequest, Sampling

_TAIL = 3  # ids at the end of a response that decide what is appended: as many as the closings of our templates have, and more
_SEED_STEP, _SEED_MASK = (
    0x9E3779B1,
    0x7FFFFFFF,
)  # as the policy service spreads the seed of n samples

_QUEUED = 1_000_000  # a step's votes come all at once, and nobody else waits


class LocalModel:
    """A `Generate` over the local engine. Use as an async context manager.

    Args:
        folder: model folder.
        version: weight version of what lies there.
        rows: samples decoded side by side.
    """

    def __init__(self, folder: Path, *, version: int = 0, rows: int = 64) -> None:
        self._renderer = Renderer.from_folder(folder)
        self._appended: dict[tuple[tuple[int, ...], tuple[ChatMessage, ...]], list[int]] = {}
        self._params: dict[Sampling, SamplingParams] = {}
        self._rids = count()
        model, config = load_model(folder)
        self._engine = Engine(
            model, config, TextCodec(folder), folder, version=str(version),
            limits=Limits(max_running=rows, max_queued=_QUEUED),
        )  # fmt: skip
        self._engine.start()

    async def __call__(self, request: GenerateRequest) -> GenerateReply:
        """Answer one request.

        Raises:
            ContextFullError: it does not fit.
            InputError: it cannot be rendered or constrained.
            PolicyError: the engine failed.
        """
        ids = self._ids(request)
        if request.prompt_logprobs:
            return await self._score(ids)
        sequences = []
        for number in range(request.n):
            sampling = request.sampling
            if sampling.seed is not None and request.n > 1:
                seed = (sampling.seed + number * _SEED_STEP) & _SEED_MASK
                sampling = sampling.model_copy(update={"seed": seed})
            params = self._params_of(sampling)
            rid = str(next(self._rids))
            try:
                sequences += self._engine.build(Prompt(ids, params, rid, return_logprob=True))
            except InputError as error:
                if len(ids) + (params.max_new_tokens or 0) > self._engine.longest:
                    raise ContextFullError(error.detail) from error
                raise
        await self._engine.generate(sequences)
        samples = [
            sample_of(result_of(seq, self._engine.codec, self._engine.version), "local")
            for seq in sequences
        ]
        return GenerateReply(
            prompt_ids=tuple(ids),
            outputs=tuple(sample.output for sample in samples),
            cached_tokens=max(sample.cached_tokens for sample in samples),
        )

    async def _score(self, ids: list[int]) -> GenerateReply:
        """The log-probabilities of a prompt."""
        params = parse_sampling({"max_new_tokens": 0, "temperature": 1.0})
        rid = str(next(self._rids))
        prompt = Prompt(ids, params, rid, return_logprob=True, logprob_start_len=0)
        (scored,) = self._engine.build(prompt)
        await self._engine.generate([scored])
        meta = result_of(scored, self._engine.codec, self._engine.version)["meta_info"]
        found = [pair[0] for pair in meta["input_token_logprobs"][1:]]
        return GenerateReply(prompt_ids=tuple(ids), outputs=(), prompt_logprobs=tuple(found))

    def _ids(self, request: GenerateRequest) -> list[int]:
        """The prompt. Small worlds answer the same again and again, and a template takes longer than a tiny model."""
        prefix = request.prefix_ids
        if not prefix:  # a prompt of its own
            return self._renderer.render(request.messages)
        key = (prefix[-_TAIL:], request.messages)
        if key not in self._appended:
            whole = self._renderer.extend(prefix, request.messages)
            self._appended[key] = whole[len(prefix) :]
        return [*prefix, *self._appended[key]]

    def _params_of(self, sampling: Sampling) -> SamplingParams:
        """As the engine reads them, checked once whatever the seed."""
        key = sampling.model_copy(update={"seed": None})
        if key not in self._params:
            self._params[key] = parse_sampling(sampling_params(key, self._renderer.eos_ids))
        return self._params[key].model_copy(update={"sampling_seed": sampling.seed})

    async def many(self, requests: Sequence[GenerateRequest]) -> list[GenerateReply]:
        """Answer requests, in order, side by side."""
        return list(await asyncio.gather(*(self(request) for request in requests)))

    async def serve(self, module: torch.nn.Module, version: int) -> None:
        """Serve the present weights of a module under a new version."""
        tensors: dict[str, Tensor] = {
            name: tensor.detach().clone() for name, tensor in module.state_dict().items()
        }
        checked = stage_tensors(tensors, self._engine.model, "the learner's weights")
        await self._engine.swap(checked, str(version))

    def stop(self) -> None:
        """End the engine's thread."""
        self._engine.stop()
