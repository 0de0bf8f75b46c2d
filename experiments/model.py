"""A model in this process, asked like a policy service."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain, count
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from services.local_engine.detokenize import TextCodec
from services.local_engine.engine import Engine
from services.local_engine.kv_cache import StepBatch
from services.local_engine.llama import LlamaModel
from services.local_engine.model import load_model, stage_weights
from services.local_engine.request import Prompt, SamplingParams, parse_sampling
from services.local_engine.sampler import sample
from services.local_engine.scheduler import Limits
from services.local_engine.sequence import Sequence as Sample
from services.policy.engines.sglang_parsing import sampling_params
from triforge.errors import ContextFullError, InputError
from triforge.rendering import Renderer
from triforge.types import (
    ChatMessage,
    GenerateOutput,
    GenerateReply,
    GenerateRequest,
    Sampling,
    VersionSpan,
    WeightsState,
    WeightsUpdate,
)

_TAIL = 3  # ids at the end of a response that decide what is appended: as many as the closings of our templates have, and more
_SEED_STEP, _SEED_MASK = (
    0x9E3779B1,
    0x7FFFFFFF,
)  # as the policy service spreads the seed of n samples


class LocalModel:
    """A `Generate` over the local engine. Use as an async context manager.

    Args:
        folder: model folder.
        role: name of the model.
        rows: samples decoded side by side.
    """

    def __init__(
        self,
        folder: Path,
        *,
        role: str = "policy",
        rows: int = 64,
    ) -> None:
        self._role, self._uri = role, str(folder)
        self._renderer = Renderer.from_folder(folder)
        self._appended: dict[tuple[tuple[int, ...], tuple[ChatMessage, ...]], list[int]] = {}
        self._params: dict[Sampling, SamplingParams] = {}
        self._rids = count()
        model, config = load_model(folder)
        self._config = config
        self._engine = Engine(
            model, config, TextCodec(folder), folder, version="0",
            limits=Limits(max_running=rows),
        )  # fmt: skip
        self._engine.start()
        self._frame: tuple[list[int], list[int]] | None = None
        self._cells = model.new_cache()  # of `_next_logits`

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
        sequences = self._sequences(request, ids)
        await self._engine.generate(sequences)
        return self._reply(ids, sequences)

    def _sequences(self, request: GenerateRequest, ids: list[int]) -> list[Sample]:
        """Return the samples of a request, before they are sampled."""
        found: list[Sample] = []
        for number in range(request.n):
            sampling = request.sampling
            if sampling.seed is not None and request.n > 1:
                seed = (sampling.seed + number * _SEED_STEP) & _SEED_MASK
                sampling = sampling.model_copy(update={"seed": seed})
            params = self._params_of(sampling)
            try:
                rid = str(next(self._rids))
                found += self._engine.build(Prompt(ids, params, rid, return_logprob=True))
            except InputError as error:
                if len(ids) + (params.max_new_tokens or 0) > self._engine.longest:
                    raise ContextFullError(error.detail) from error
                raise
        return found

    def _reply(self, ids: list[int], sequences: Sequence[Sample]) -> GenerateReply:
        """Return what was sampled, as a service's parser reads it off the wire."""
        outputs = []
        for sequence in sequences:
            length, finish = sequence.snapshot()
            assert finish is not None
            spans = sequence.weight_spans(length, self._engine.version)
            outputs.append(
                GenerateOutput(
                    text=self._engine.codec.final_text(sequence.output, finish.get("matched")),
                    ids=tuple(sequence.output),
                    logprobs=tuple(sequence.logprobs),
                    versions=tuple(
                        VersionSpan(version=int(s["version"]), start=s["start"], end=s["end"])
                        for s in spans
                        if s["start"] < s["end"]
                    ),
                    finish=finish["type"],
                )
            )
        cached = max(sequence.cached for sequence in sequences)
        return GenerateReply(prompt_ids=tuple(ids), outputs=tuple(outputs), cached_tokens=cached)

    async def _score(self, ids: list[int]) -> GenerateReply:
        """Return the log-probabilities of a prompt."""
        params = parse_sampling({"max_new_tokens": 0, "temperature": 1.0})
        rid = str(next(self._rids))
        prompt = Prompt(ids, params, rid, return_logprob=True, logprob_start_len=0)
        (scored,) = self._engine.build(prompt)
        await self._engine.generate([scored])
        found = [logprob or 0.0 for logprob, _ in scored.input_scores[1:]]
        return GenerateReply(
            prompt_ids=tuple(ids),
            outputs=(),
            prompt_logprobs=tuple(found),
            prompt_version=int(self._engine.version),
        )

    def _ids(self, request: GenerateRequest) -> list[int]:
        """Return the prompt. Small worlds answer the same again and again, and a template takes longer than a tiny model."""
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
        """Answer requests, in order, side by side; those of one token, as votes of one word are, in one pass."""
        model = self._engine.model
        if not isinstance(model, LlamaModel) or not all(map(_is_a_word, requests)):
            return list(await asyncio.gather(*(self(request) for request in requests)))
        prompts = [self._framed(request) for request in requests]
        sequences = [self._sequences(*pair) for pair in zip(requests, prompts, strict=True)]
        flat = list(chain.from_iterable(sequences))
        params, seeds = [one.prompt.params for one in flat], [one.seed for one in flat]
        rows = [row for row, found in enumerate(sequences) for _ in found]
        sampled = sample(self._next_logits(prompts)[rows], params, seeds, [0] * len(flat))
        tokens, scores = sampled.ids.tolist(), sampled.logprobs.tolist()
        for row, (one, token, score) in enumerate(zip(flat, tokens, scores, strict=True)):
            one.begin_span(self._engine.version)
            one.add(token, score, sampled.full, row)
        return [self._reply(*pair) for pair in zip(prompts, sequences, strict=True)]

    def _framed(self, request: GenerateRequest) -> list[int]:
        """Return the prompt; what the template puts around a lone text is learnt from the first one. For vocabularies of whole words."""
        content = request.messages[0].content if len(request.messages) == 1 else None
        if request.prefix_ids or not isinstance(content, str):
            return self._ids(request)
        inner = self._renderer.encode_text(content)
        if self._frame is None:
            whole, size = self._renderer.render(request.messages), len(inner)
            at = next(i for i in range(len(whole)) if whole[i : i + size] == inner)
            self._frame = whole[:at], whole[at + size :]
        return [*self._frame[0], *inner, *self._frame[1]]

    def _next_logits(self, prompts: Sequence[list[int]]) -> Tensor:
        """Logits after each prompt: one forward pass over the tree of all tokens, each of which sees those above it."""
        nodes: dict[tuple[int, int], int] = {}  # by what stands above and the token
        depths: list[int] = []
        ends = []
        for prompt in prompts:
            at = -1
            for depth, token in enumerate(prompt):
                at = nodes.setdefault((at, token), len(nodes))
                if at == len(depths):
                    depths.append(depth)
            ends.append(at)
        size = len(nodes)
        mask = np.full((size, size), np.float32("-inf"))
        for (above, _), node in nodes.items():
            if above >= 0:
                mask[node] = mask[above]
            mask[node, node] = 0.0
        ids = torch.tensor([token for _, token in nodes])
        self._cells.reserve(1, size, [])
        batch = StepBatch(
            ids, torch.tensor(depths), torch.arange(size), 0, 1, size, size,
            torch.from_numpy(mask)[None, None], wanted=torch.tensor(ends),
        )  # fmt: skip
        return self._engine.model.forward(batch, self._cells)

    async def weights(self) -> WeightsState:
        """Return the version that serves."""
        version = int(self._engine.version)
        return WeightsState(role=self._role, version=version, uri=self._uri, engines=1, ready=1)

    async def update_weights(self, update: WeightsUpdate) -> WeightsState:
        """Serve the folder of a version."""
        folder, model = Path(update.uri.removeprefix("file://")), self._engine.model
        tensors = await asyncio.to_thread(stage_weights, folder, model, self._config)
        await self._engine.swap(tensors, str(update.version), folder=folder)
        self._uri = update.uri
        return await self.weights()

    async def release_memory(self) -> WeightsState:
        """Keep the memory: engine and learner share a process."""
        return await self.weights()

    async def resume_memory(self) -> WeightsState:
        """Serve on."""
        return await self.weights()

    async def generate_many(self, requests: Sequence[GenerateRequest]) -> list[GenerateReply]:
        """Answer requests, in order."""
        return await self.many(requests)

    def stop(self) -> None:
        """End the engine's thread."""
        self._engine.stop()


def _is_a_word(request: GenerateRequest) -> bool:
    """Whether a request asks for the next token, whichever it is."""
    free = request.sampling.regex is None and request.sampling.json_schema is None
    return free and request.sampling.max_new_tokens == 1 and not request.prompt_logprobs
