"""Conversion between our types and SGLang's JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic_core import from_json, to_json

from services.policy.engines.answers import (
    UNEXPECTED,
    broken_off,
    check_image_tokens,
    end_of,
    nonsense,
    spans_of,
    version_of,
)
from services.policy.engines.protocol import Partial, Prompt, Sample, Tops
from triforge.errors import PolicyError, TriforgeError
from triforge.types import GenerateOutput, Sampling, VersionSpan


def generate_body(
    prompts: Sequence[Prompt],
    *,
    rids: Sequence[str] = (),
    adapter: str = "",
    cache_key: str = "",
    stream: bool = False,
) -> bytes:
    """Return the body of `/generate` for prompts that want the same number of samples each, all with images or none.

    `cache_key`: only what was cached for requests with the same one is used. `stream`: there is one prompt.
    """
    body: dict[str, Any] = {
        "input_ids": [list(p.ids if p.images is None else p.images.ids) for p in prompts],
        "sampling_params": [_params(p) for p in prompts],
    }
    if prompts[0].images is not None:
        body["image_data"] = [list(p.images.data) for p in prompts if p.images is not None]
    if rids:
        body["rid"] = list(rids)
    if stream:
        body = {name: values[0] for name, values in body.items()} | {"stream": True}
    optional = {
        "lora_path": adapter,
        "extra_key": cache_key,
        "top_logprobs_num": prompts[0].extras.top_logprobs,
    }
    body |= {name: value for name, value in optional.items() if value}
    return to_json(body | {"return_logprob": True})


def _params(prompt: Prompt) -> dict[str, Any]:
    extras = prompt.extras
    optional = {
        "frequency_penalty": extras.frequency_penalty,
        "presence_penalty": extras.presence_penalty,
        "logit_bias": {str(token): bias for token, bias in extras.logit_bias},
        "n": prompt.n if prompt.n > 1 else 0,
    }
    params = sampling_params(prompt.sampling, prompt.stop_ids)
    return params | {name: value for name, value in optional.items() if value}


def sampling_params(sampling: Sampling, stop_ids: Sequence[int]) -> dict[str, Any]:
    """Return `Sampling` under SGLang's names, without fields at their defaults."""
    optional = {
        "top_p": (sampling.top_p, 1.0),
        "top_k": (sampling.top_k, -1),
        "stop": (list(sampling.stop), []),
        "stop_token_ids": (list(stop_ids), []),
        "sampling_seed": (sampling.seed, None),
        "regex": (sampling.regex, None),
        "json_schema": (sampling.json_schema, None),
    }
    return {
        "max_new_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        **{name: value for name, (value, unset) in optional.items() if value != unset},
    }


def samples_of(answers: Any, prompts: Sequence[Prompt], engine: str) -> list[Sample]:
    """Parse the answers of `/generate`, prompt by prompt, each with its n samples."""
    sent = [prompt for prompt in prompts for _ in range(prompt.n)]
    if not isinstance(answers, list) or len(answers) != len(sent):
        shape = f"{len(answers)} answers" if isinstance(answers, list) else type(answers).__name__
        raise PolicyError(
            f"engine {engine}: expected {len(sent)} answers to /generate, got {shape}"
        )
    samples = [_sample(item, prompt, engine) for item, prompt in zip(answers, sent, strict=True)]
    for prompt, sample in zip(sent, samples, strict=True):
        check_image_tokens(prompt, sample.prompt_tokens, engine)
    return samples


def _sample(item: Any, prompt: Prompt, engine: str) -> Sample:
    try:
        meta = item["meta_info"]
        pairs = meta["output_token_logprobs"] or ()
        ids = tuple(item["output_ids"])
        if ids != tuple(pair[1] for pair in pairs):
            raise ValueError("output_ids and output_token_logprobs name different tokens")
        finish, text = end_of(meta["finish_reason"]["type"], item["text"], ids, prompt)
        output = GenerateOutput(
            text=text,
            ids=ids,
            logprobs=tuple(pair[0] for pair in pairs),
            versions=_spans(meta, len(ids), engine),
            finish=finish,
        )
        cached, counted = (int(meta.get(n) or 0) for n in ("cached_tokens", "prompt_tokens"))
        return Sample(output, cached, counted, _tops(meta))
    except UNEXPECTED as error:
        raise nonsense(engine, "/generate answered something unexpected", error, item) from error


def partial_of(line: str, prompt: Prompt, engine: str) -> Partial:
    """Parse one event of a streamed answer to a prompt, with everything written so far in it."""
    try:
        item = from_json(line)
        if "error" in item:
            raise broken_off(item["error"], engine)
        meta = item["meta_info"]
        finish = meta["finish_reason"]
        if finish is not None and (finish.get("status_code") or 0) >= 400:
            raise broken_off(finish | {"code": finish["status_code"]}, engine)
        pairs = meta.get("output_token_logprobs") or ()
        ids, text, ended = tuple(pair[1] for pair in pairs), item["text"], None
        if finish is not None:
            ended, text = end_of(finish["type"], text, ids, prompt)
        return Partial(
            text=text,
            ids=ids,
            logprobs=tuple(pair[0] for pair in pairs),
            versions=_spans(meta, len(pairs), engine) if finish is not None and pairs else (),
            prompt_tokens=int(meta["prompt_tokens"]),
            cached_tokens=int(meta.get("cached_tokens") or 0),
            finish=ended,
            tops=_tops(meta),
        )
    except TriforgeError:
        raise
    except UNEXPECTED as error:
        raise nonsense(engine, "a streamed answer is unexpected", error, line) from error


def _tops(meta: dict[str, Any]) -> Tops:
    rows = meta.get("output_top_logprobs") or ()
    return tuple(tuple((float(pair[0]), int(pair[1])) for pair in row or ()) for row in rows)


def prompt_logprobs_of(answer: Any, ids: Sequence[int], engine: str) -> tuple[list[float], int]:
    """Parse the log-probabilities of all ids of a prompt but the first, and the version that the engine had then."""
    try:
        pairs = answer["meta_info"]["input_token_logprobs"][1:]
        # SGLang writes 0 for the last id of a vocabulary, so ids are not compared.
        if len(pairs) != len(ids) - 1:
            raise ValueError(f"{len(pairs)} of them for a prompt of {len(ids)} ids")
        version = version_of(answer["meta_info"]["weight_version"], engine)
        return [float(pair[0]) for pair in pairs], version
    except UNEXPECTED as error:
        what = "/generate gave no log-probabilities of its prompt"
        raise nonsense(engine, what, error, answer) from error


def _spans(meta: dict[str, Any], size: int, engine: str) -> tuple[VersionSpan, ...]:
    """Return versions by token; without spans the last version holds for all."""
    whole = [{"version": meta["weight_version"], "start": 0, "end": size}]
    return spans_of(meta.get("weight_versions") or whole, size, engine)
