"""Conversion between our types and SGLang's JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic_core import from_json, to_json

from services.policy.engines.protocol import Partial, Prompt, Sample, Tops
from triforge.errors import InputError, PolicyError, TriforgeError
from triforge.types import GenerateOutput, Sampling, VersionSpan

# SGLang's name for weights that were never replaced; such an engine counts as version 0.
NEVER_UPDATED = "default"
# Engines' words for a prompt and an answer that do not fit: SGLang's two sentences, with `--max-total-tokens`, ours.
_TOO_LONG = re.compile(r"context length|maximum allowed length|max-total-tokens")
_UNEXPECTED = (KeyError, TypeError, ValueError, IndexError, AttributeError)


def is_too_long(detail: str) -> bool:
    """Return whether an engine's refusal means that the prompt has outgrown its context."""
    return _TOO_LONG.search(detail) is not None


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
        finish, text = _ended(meta["finish_reason"]["type"], item["text"], ids, prompt)
        output = GenerateOutput(
            text=text,
            ids=ids,
            logprobs=tuple(pair[0] for pair in pairs),
            versions=_spans(meta, len(ids), engine),
            finish=finish,
        )
        cached, counted = (int(meta.get(n) or 0) for n in ("cached_tokens", "prompt_tokens"))
        return Sample(output, cached, counted, _tops(meta))
    except _UNEXPECTED as error:
        raise _nonsense(engine, "/generate answered something unexpected", error, item) from error


def partial_of(line: str, prompt: Prompt, engine: str) -> Partial:
    """Parse one event of a streamed answer to a prompt, with everything written so far in it."""
    try:
        item = from_json(line)
        if "error" in item:
            raise _broken_off(item["error"], engine)
        meta = item["meta_info"]
        finish = meta["finish_reason"]
        if finish is not None and (finish.get("status_code") or 0) >= 400:
            raise _broken_off(finish | {"code": finish["status_code"]}, engine)
        pairs = meta.get("output_token_logprobs") or ()
        ids, text, ended = tuple(pair[1] for pair in pairs), item["text"], None
        if finish is not None:
            ended, text = _ended(finish["type"], text, ids, prompt)
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
    except _UNEXPECTED as error:
        raise _nonsense(engine, "a streamed answer is unexpected", error, line) from error


def _ended(kind: Any, text: str, ids: Sequence[int], prompt: Prompt) -> tuple[Any, str]:
    """Return why an answer has ended, and its text.

    SGLang says length of an answer that is whole with its last allowed token: 0.5.23 where a grammar is finished, which only
    JSON shows, and older versions at a stop token or stop string, which they leave in the text.
    """
    if kind != "length":
        return kind, text
    for stop in prompt.sampling.stop:
        if stop in text:
            return "stop", text.partition(stop)[0]
    whole = prompt.sampling.json_schema is not None and _is_whole_json(text)
    return "stop" if whole or (ids and ids[-1] in prompt.stop_ids) else kind, text


def _is_whole_json(text: str) -> bool:
    """Return whether a text is JSON that more text would break: not a number, which more digits continue."""
    try:
        value = from_json(text)
    except ValueError:
        return False
    return isinstance(value, bool) or not isinstance(value, int | float)


def _tops(meta: dict[str, Any]) -> Tops:
    rows = meta.get("output_top_logprobs") or ()
    return tuple(tuple((float(pair[0]), int(pair[1])) for pair in row or ()) for row in rows)


def _broken_off(error: Any, engine: str) -> InputError | PolicyError:
    """Return the error that an engine reports in the middle of a stream."""
    fields = error if isinstance(error, dict) else {"message": error}
    refused = str(fields.get("code")) == "400"
    return (InputError if refused else PolicyError)(f"engine {engine}: {fields.get('message')}")


def prompt_logprobs_of(answer: Any, ids: Sequence[int], engine: str) -> tuple[list[float], int]:
    """Parse the log-probabilities of all ids of a prompt but the first, and the version that the engine had then."""
    try:
        pairs = answer["meta_info"]["input_token_logprobs"][1:]
        # SGLang writes 0 for the last id of a vocabulary, so ids are not compared.
        if len(pairs) != len(ids) - 1:
            raise ValueError(f"{len(pairs)} of them for a prompt of {len(ids)} ids")
        version = version_of(answer["meta_info"]["weight_version"], engine)
        return [float(pair[0]) for pair in pairs], version
    except _UNEXPECTED as error:
        what = "/generate gave no log-probabilities of its prompt"
        raise _nonsense(engine, what, error, answer) from error


def _nonsense(engine: str, what: str, error: Exception, answer: Any) -> PolicyError:
    return PolicyError(
        f"engine {engine}: {what} ({type(error).__name__}: {error}): {answer!r:.200}"
    )


def check_image_tokens(prompt: Prompt, counted: int, engine: str) -> None:
    """Compare the tokens that an engine counts in a prompt with images with ours."""
    if prompt.images is not None and counted != len(prompt.ids):
        raise PolicyError(
            f"engine {engine}: counts {counted} prompt tokens where we count {len(prompt.ids)}; does it scale images as "
            "the model folder's preprocessor_config.json says?"
        )


def version_of(text: object, engine: str) -> int:
    """Return a weight version as a number."""
    if text == NEVER_UPDATED:
        return 0
    try:
        return int(str(text))
    except ValueError:
        raise PolicyError(
            f"engine {engine}: weight version {text!r} is not a number; start it with --weight-version 0"
        ) from None


def _spans(meta: dict[str, Any], size: int, engine: str) -> tuple[VersionSpan, ...]:
    """Return versions by token, covering [0, size) without a gap; without spans the last version holds for all."""
    raw = meta.get("weight_versions")
    if not raw:
        raw = [{"version": meta["weight_version"], "start": 0, "end": size}]
    spans = tuple(
        VersionSpan(version=version_of(s["version"], engine), start=s["start"], end=s["end"])
        for s in raw
        if s["start"] < s["end"]
    )
    borders = [0, *(s.end for s in spans)]
    if [s.start for s in spans] != borders[:-1] or borders[-1] != size:
        raise ValueError(f"weight_versions {raw} do not cover the {size} tokens")
    return spans
