"""What goes to an engine's `/generate` and what comes back, between our types and SGLang's JSON. Knows no connection."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic_core import from_json, to_json

from triforge.errors import InputError, PolicyError, TriforgeError
from triforge.types import GenerateOutput, Sampling, VersionSpan

# SGLang's name for weights that were never replaced; such an engine counts as version 0.
NEVER_UPDATED = "default"
# How engines say that a prompt and its answer do not fit: SGLang with its two sentences, with `--max-total-tokens`, ours.
_TOO_LONG = re.compile(r"context length|maximum allowed length|max-total-tokens")


@dataclass(frozen=True, slots=True)
class Pictures:
    """The images of a prompt as `data:` URIs, and its ids with one token for each of them."""

    ids: Sequence[int]
    data: Sequence[str]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt for `n` samples. `stop_ids` end an answer and stay in it."""

    ids: Sequence[int]
    sampling: Sampling
    stop_ids: Sequence[int] = ()
    n: int = 1
    pictures: Pictures | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer, how many prompt tokens came from the engine's cache, and how many it counts in all (0: not said)."""

    output: GenerateOutput
    cached_tokens: int
    prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Partial:
    """An answer as far as it is written. `finish` is None while it goes on."""

    text: str
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[VersionSpan, ...]
    prompt_tokens: int
    cached_tokens: int
    finish: Literal["stop", "length", "abort"] | None


def says_too_long(detail: str) -> bool:
    """Whether an engine's refusal means that the prompt has outgrown its context."""
    return _TOO_LONG.search(detail) is not None


def generate_body(
    prompts: Sequence[Prompt],
    rids: Sequence[str] = (),
    *,
    shared: bool = False,
    adapter: str = "",
) -> bytes:
    """The body of `/generate` for prompts that want the same number of samples each, all with images or none.

    Args:
        prompts: at least one.
        rids: names under which the prompts can be aborted.
        shared: all prompts have the same sampling parameters, which are written once.
        adapter: name of the adapter to answer with; empty for none.
    """
    body: dict[str, Any] = {
        "input_ids": [_ids(prompt) for prompt in prompts],
        "sampling_params": _params(prompts[0]) if shared else [_params(p) for p in prompts],
        "return_logprob": True,
    }
    if prompts[0].pictures is not None:
        body["image_data"] = [list(p.pictures.data) for p in prompts if p.pictures is not None]
    if rids:
        body["rid"] = list(rids)
    if adapter:
        body["lora_path"] = adapter
    return to_json(body)


def stream_body(prompt: Prompt, rid: str, adapter: str = "") -> bytes:
    """The body of `/generate` for one sample that is sent as it is written."""
    body = {
        "input_ids": _ids(prompt),
        "sampling_params": sampling_params(prompt.sampling, prompt.stop_ids),
        "return_logprob": True,
        "stream": True,
        "rid": rid,
    }
    if prompt.pictures is not None:
        body["image_data"] = list(prompt.pictures.data)
    return to_json(body | ({"lora_path": adapter} if adapter else {}))


def probe_body(ids: Sequence[int], adapter: str) -> bytes:
    """The body of `/generate` that asks for the log-probabilities of a prompt."""
    return to_json(
        {
            "input_ids": list(ids),
            "sampling_params": {"max_new_tokens": 1, "temperature": 1.0},
            "return_logprob": True,
            "logprob_start_len": 0,
            "lora_path": adapter,
        }
    )


def prompt_logprobs_of(found: Any, ids: Sequence[int], engine: str) -> list[float]:
    """The log-probabilities of all ids of a prompt but the first.

    Raises:
        PolicyError: the answer holds something else.
    """
    try:
        pairs = found["meta_info"]["input_token_logprobs"][1:]
        # SGLang writes 0 for the last id of a vocabulary, so the ids beside them cannot be compared.
        if len(pairs) != len(ids) - 1:
            raise ValueError(f"{len(pairs)} of them for a prompt of {len(ids)} ids")
        return [float(pair[0]) for pair in pairs]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise PolicyError(
            f"engine {engine}: /generate gave no log-probabilities of its prompt "
            f"({type(error).__name__}: {error}): {found!r:.200}"
        ) from error


def _ids(prompt: Prompt) -> list[int]:
    return list(prompt.ids if prompt.pictures is None else prompt.pictures.ids)


def _params(prompt: Prompt) -> dict[str, Any]:
    params = sampling_params(prompt.sampling, prompt.stop_ids)
    return params | {"n": prompt.n} if prompt.n > 1 else params


def sampling_params(sampling: Sampling, stop_ids: Sequence[int]) -> dict[str, Any]:
    """`Sampling` under SGLang's names; what is at its default is left out."""
    params: dict[str, Any] = {
        "max_new_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
    }
    optional = {
        "top_p": (sampling.top_p, 1.0),
        "top_k": (sampling.top_k, -1),
        "stop": (list(sampling.stop), []),
        "stop_token_ids": (list(stop_ids), []),
        "sampling_seed": (sampling.seed, None),
        "regex": (sampling.regex, None),
        "json_schema": (sampling.json_schema, None),
    }
    params |= {name: value for name, (value, unset) in optional.items() if value != unset}
    return params


def samples_of(found: Any, prompts: Sequence[Prompt], engine: str) -> list[Sample]:
    """The answers of `/generate`, prompt by prompt, each with its n samples.

    Raises:
        PolicyError: the answer is not one; `engine` names who gave it.
    """
    expected = sum(prompt.n for prompt in prompts)
    if not isinstance(found, list) or len(found) != expected:
        shape = f"{len(found)} answers" if isinstance(found, list) else type(found).__name__
        raise PolicyError(f"engine {engine}: expected {expected} answers to /generate, got {shape}")
    samples = [sample_of(item, engine) for item in found]
    if prompts[0].pictures is not None:
        _raise_if_seen_otherwise(samples, prompts, engine)
    return samples


def _raise_if_seen_otherwise(
    samples: Sequence[Sample], prompts: Sequence[Prompt], engine: str
) -> None:
    """Raises PolicyError where an engine made more or fewer tokens of a prompt's images than we did."""
    asked = [prompt for prompt in prompts for _ in range(prompt.n)]
    for prompt, sample in zip(asked, samples, strict=True):
        check_seen(prompt, sample.prompt_tokens, engine)


def check_seen(prompt: Prompt, counted: int, engine: str) -> None:
    """Compare what an engine made of a prompt with images with what we made of it.

    Raises:
        PolicyError: it counts more or fewer tokens.
    """
    if prompt.pictures is not None and counted != len(prompt.ids):
        raise PolicyError(
            f"engine {engine}: counts {counted} prompt tokens where we count {len(prompt.ids)}; does it scale images as "
            "the model folder's preprocessor_config.json says?"
        )


def sample_of(item: Any, engine: str) -> Sample:
    """One answer of `/generate`.

    Raises:
        PolicyError: it is not one, or its numbers contradict each other.
    """
    try:
        meta = item["meta_info"]
        pairs = meta["output_token_logprobs"] or ()
        ids = tuple(item["output_ids"])
        if ids != tuple(pair[1] for pair in pairs):
            raise ValueError("output_ids and output_token_logprobs name different tokens")
        output = GenerateOutput(
            text=item["text"],
            ids=ids,
            logprobs=tuple(pair[0] for pair in pairs),
            versions=_spans(meta, len(ids), engine),
            finish=meta["finish_reason"]["type"],
        )
        cached, counted = (int(meta.get(n) or 0) for n in ("cached_tokens", "prompt_tokens"))
        return Sample(output, cached, counted)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise PolicyError(
            f"engine {engine}: /generate answered something unexpected "
            f"({type(error).__name__}: {error}): {item!r:.200}"
        ) from error


def partial_of(line: str, engine: str) -> Partial:
    """One event of a streamed answer, everything written so far in it.

    Raises:
        InputError: the engine refuses the prompt in the middle of the stream.
        PolicyError: it failed, or the event is none.
    """
    try:
        item = from_json(line)
        if "error" in item:
            raise _said(item["error"], engine)
        meta = item["meta_info"]
        finish = meta["finish_reason"]
        if finish is not None and (finish.get("status_code") or 0) >= 400:
            raise _said({"message": finish.get("message"), "code": finish["status_code"]}, engine)
        pairs = meta.get("output_token_logprobs") or ()
        ids = tuple(pair[1] for pair in pairs)
        spans = _spans(meta, len(ids), engine) if finish is not None and ids else ()
        return Partial(
            text=item["text"],
            ids=ids,
            logprobs=tuple(pair[0] for pair in pairs),
            versions=spans,
            prompt_tokens=int(meta["prompt_tokens"]),
            cached_tokens=int(meta.get("cached_tokens") or 0),
            finish=None if finish is None else finish["type"],
        )
    except TriforgeError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise PolicyError(
            f"engine {engine}: a streamed answer holds something unexpected "
            f"({type(error).__name__}: {error}): {line:.200}"
        ) from error


def _said(error: Any, engine: str) -> InputError | PolicyError:
    """What an engine said in the middle of a stream."""
    found = error if isinstance(error, dict) else {"message": error}
    refused = str(found.get("code")) == "400"
    return (InputError if refused else PolicyError)(f"engine {engine}: {found.get('message')}")


def version_of(text: object, engine: str) -> int:
    """A weight version as a number.

    Raises:
        PolicyError: it is none.
    """
    if text == NEVER_UPDATED:
        return 0
    try:
        return int(str(text))
    except ValueError:
        raise PolicyError(
            f"engine {engine}: weight version {text!r} is not a number; start it with --weight-version 0"
        ) from None


def _spans(meta: dict[str, Any], size: int, engine: str) -> tuple[VersionSpan, ...]:
    """Versions by token, covering [0, size) without a gap; without spans the last version holds for all."""
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
