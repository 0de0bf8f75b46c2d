"""What each route does, as plain functions from a parsed body to an answer. Shapes follow SGLang 0.5."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from services.local_engine.engine import Engine, new_rid
from services.local_engine.request import Prompt, SamplingParams, parse_sampling
from services.local_engine.sequence import Sequence
from triforge.errors import InputError

_IGNORED = frozenset(
    {"priority", "extra_key", "session_id", "routed_dp_rank", "model", "background"}
)
_KNOWN = frozenset({
    "text", "input_ids", "sampling_params", "rid", "return_logprob", "logprob_start_len", "top_logprobs_num", "stream",
})  # fmt: skip


def _spread(body: dict[str, Any], name: str, default: Any, count: int) -> list[Any]:
    """A field of a batch: one value for all prompts, or a list with one a prompt."""
    value = body.get(name)
    if value is None:
        return [default] * count
    if not isinstance(value, list):
        return [value] * count
    if len(value) != count:
        raise InputError(
            f"{name} has {len(value)} entries; expected one for each of {count} prompts"
        )
    return value


def _prompts_of(engine: Engine, body: dict[str, Any]) -> tuple[list[list[int]], bool]:
    """The prompts as ids, and whether the request was a batch."""
    text: Any = body.get("text")
    ids: Any = body.get("input_ids")
    if (text is None) == (ids is None):
        raise InputError("expected exactly one of text and input_ids")
    if text is not None:
        batch = isinstance(text, list)
        texts = text if batch else [text]
        if not texts or not all(isinstance(t, str) for t in texts):
            raise InputError("text must be a string or a non-empty list of strings")
        return [engine.codec.encode(t) for t in texts], batch
    batch = isinstance(ids, list) and bool(ids) and isinstance(ids[0], list)
    rows = ids if batch else [ids]
    for row in rows:
        if not isinstance(row, list) or not row or not all(type(i) is int for i in row):
            raise InputError("input_ids must be a non-empty list of ids, or a list of such lists")
    return rows, batch


def _typed(name: str, value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise InputError(f"{name} is {value!r}; expected {kind.__name__}")
    return value


def parse_generate(engine: Engine, body: Any) -> tuple[list[Sequence], bool, bool]:
    """Sequences of a /generate body, whether the answer is a list, and whether it is streamed.

    Raises:
        InputError: the body is malformed or asks for what this engine does not do.
    """
    if not isinstance(body, dict):
        raise InputError("expected a JSON object")
    for name, value in body.items():
        if name not in _KNOWN and name not in _IGNORED and value not in (None, False, [], {}):
            raise InputError(f"{name} is not supported by the local engine")
    prompts, batch = _prompts_of(engine, body)
    count = len(prompts)
    raw = body.get("sampling_params")
    sampling: list[SamplingParams]
    if isinstance(raw, list):
        sampling = [parse_sampling(r) for r in _spread(body, "sampling_params", None, count)]
    else:
        sampling = [parse_sampling(raw)] * count
    rids = _spread(body, "rid", None, count) if batch else [body.get("rid")]
    if batch and isinstance(body.get("rid"), str):
        rids = [f"{body['rid']}_{i}" for i in range(count)]
    logprob = _spread(body, "return_logprob", False, count)
    start = _spread(body, "logprob_start_len", -1, count)
    top = _spread(body, "top_logprobs_num", 0, count)
    sequences: list[Sequence] = []
    for i, ids in enumerate(prompts):
        rid = new_rid() if rids[i] is None else _typed("rid", rids[i], str)
        prompt = Prompt(
            ids,
            sampling[i],
            rid,
            _typed("return_logprob", logprob[i], bool),
            _typed("logprob_start_len", start[i], int),
            _typed("top_logprobs_num", top[i], int),
        )
        sequences.extend(engine.build(prompt))
    many = batch or any(p.n > 1 for p in sampling)
    return sequences, many, bool(body.get("stream"))


def _flag(body: dict[str, Any], name: str) -> bool:
    return bool(_typed(name, body.get(name) or False, bool))


async def pause_generation(engine: Engine, body: dict[str, Any]) -> dict[str, Any]:
    """POST /pause_generation."""
    mode = body.get("mode") or "abort"
    if mode not in ("abort", "retract", "in_place"):
        raise InputError(f"mode is {mode!r}; expected abort, retract or in_place")
    await engine.pause(mode)
    return {"status": "ok", "message": "Generation paused successfully."}


async def continue_generation(engine: Engine, body: dict[str, Any]) -> dict[str, Any]:
    """POST /continue_generation."""
    _flag(body, "torch_empty_cache")  # accepted and without meaning on a CPU
    await engine.resume()
    return {"status": "ok", "message": "Generation continued successfully."}


async def abort_request(engine: Engine, body: dict[str, Any]) -> dict[str, Any]:
    """POST /abort_request: one request by `rid`, or all with `abort_all`."""
    rid = body.get("rid")
    if _flag(body, "abort_all"):
        rid = None
    elif not isinstance(rid, str) or not rid:
        raise InputError("expected rid, or abort_all true")
    return {"num_aborted": await engine.abort(rid)}


async def update_weights_from_disk(engine: Engine, body: dict[str, Any]) -> dict[str, Any]:
    """POST /update_weights_from_disk. The prefix cache is always flushed: its keys belong to the old weights.

    Raises:
        WeightsError: the folder is not right; the old weights keep serving.
    """
    folder = _typed("model_path", body.get("model_path"), str)
    version = body.get("weight_version")
    if version is not None:
        version = str(_typed("weight_version", version, str))
    running = await engine.update_weights(
        Path(folder), version, abort=_flag(body, "abort_all_requests")
    )
    return {
        "success": True,
        "message": "Succeeded to update model weights.",
        "num_paused_requests": running,
    }


async def update_weight_version(engine: Engine, body: dict[str, Any]) -> dict[str, Any]:
    """POST /update_weight_version: another name for the same weights."""
    version = _typed("new_version", body.get("new_version"), str)
    if body.get("abort_all_requests", True):
        await engine.abort(None)
    await engine.rename(version)
    return {"success": True, "message": "Weight version updated.", "new_version": version}


async def weights_checker(engine: Engine, body: dict[str, Any]) -> dict[str, Any]:
    """POST /weights_checker {"action": "checksum"}."""
    if body.get("action") != "checksum":
        raise InputError(f"action is {body.get('action')!r}; the local engine knows checksum")
    return {"success": True, "message": "Success.", **await engine.checksum()}


def model_info(engine: Engine) -> dict[str, Any]:
    """GET /model_info."""
    return {
        "model_path": str(engine.folder),
        "tokenizer_path": str(engine.codec.file.parent),
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": engine.version,
        "model_type": engine.config.get("model_type"),
        "architectures": engine.config.get("architectures"),
        "vocab_size": engine.config.get("vocab_size"),
    }


def server_info(engine: Engine, served_name: str) -> dict[str, Any]:
    """GET /server_info."""
    limits = engine.limits
    return {
        "model_path": str(engine.folder),
        "served_model_name": served_name,
        "weight_version": engine.version,
        "max_running_requests": limits.max_running,
        "max_total_tokens": limits.max_total_tokens,
        "max_queued_requests": limits.max_queued,
        "max_req_input_len": engine.longest - 1,
        "context_length": engine.longest,
        "dtype": "float32",
        "device": "cpu",
        "is_paused": engine.paused,
        "internal_states": [engine.load()],
        "engine": "triforge-local-engine",
    }
