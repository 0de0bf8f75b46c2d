r"""An engine without a model and without latency: SGLang's `/generate` over a bare asyncio protocol.

It answers every prompt at once with 16 tokens, so that what is measured through it is the way to an engine and back. The
text is the same every time, or that of two in turn: `policy` says "left" and "right", `reward` votes for and against. It takes
new weights by their number alone. `/v1/chat/completions` says the same, whole or as server-sent events.

Run: python -m bench.zero_engine PORT FOLDER [acts | judges]
"""

import asyncio
import itertools
import json
import sys

import uvloop

TOKENS = 16
END = 2
TEXTS = {"": ("go take",), "policy": ("left", "right"), "reward": (r"\boxed{1}", r"\boxed{-1}")}
_META = {
    "id": "zero", "finish_reason": {"type": "stop", "matched": END}, "prompt_tokens": 64, "completion_tokens": TOKENS,
    "cached_tokens": 0, "cached_tokens_details": None, "reasoning_tokens": 0, "num_retractions": 0, "input_token_logprobs": [],
    "output_token_logprobs": [[-0.5, 5, None]] * (TOKENS - 1) + [[-0.5, END, None]],
    "output_token_logprobs_length": TOKENS, "dp_rank": None, "e2e_latency": 0.0, "response_sent_to_client_ts": 0.0,
}  # fmt: skip


def answer(text: str, version: str) -> bytes:
    spans = [{"version": version, "start": 0, "end": TOKENS}]
    meta = {**_META, "weight_version": version, "weight_versions": spans}
    ids = [5] * (TOKENS - 1) + [END]
    return json.dumps({"text": text, "output_ids": ids, "meta_info": meta}).encode()


def chat(text: str) -> tuple[bytes, bytes]:
    """Return a chat completion: whole, and as the events of a stream."""
    usage = {"prompt_tokens": 64, "completion_tokens": TOKENS, "total_tokens": 64 + TOKENS}
    about = {"id": "zero", "created": 1, "model": "zero"}
    message = {"role": "assistant", "content": text}

    def choice(finish: str | None, **part: object) -> dict[str, object]:
        return {"index": 0, "finish_reason": finish, **part}

    whole = about | {
        "object": "chat.completion", "usage": usage, "choices": [choice("stop", message=message)],
    }  # fmt: skip
    chunk = about | {"object": "chat.completion.chunk"}
    events = (
        chunk | {"choices": [choice(None, delta=message)]},
        chunk | {"choices": [choice("stop", delta={})], "usage": usage},
    )
    lines = [f"data: {json.dumps(event)}\n\n" for event in events]
    return json.dumps(whole).encode(), "".join([*lines, "data: [DONE]\n\n"]).encode()


def _reply(body: bytes, kind: bytes = b"application/json") -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (
        kind,
        len(body),
        body,
    )


class Weights:
    """Text and version that all connections of an engine answer with."""

    def __init__(self, folder: str, texts: tuple[str, ...]) -> None:
        self._texts = texts
        self.move(folder, "0")
        whole = [chat(text) for text in texts]
        self._chats = itertools.cycle(
            [(_reply(body), _reply(events, b"text/event-stream")) for body, events in whole]
        )

    def move(self, folder: str, version: str) -> None:
        info = {"model_path": folder, "is_generation": True, "weight_version": version}
        self.info = _reply(json.dumps(info).encode())
        self._answers = itertools.cycle([answer(text, version) for text in self._texts])
        self._same: dict[int, bytes] = {}

    def samples(self, count: int) -> bytes:
        if len(self._texts) > 1:
            return self._reply_to(count)
        if count not in self._same:
            self._same[count] = self._reply_to(count)
        return self._same[count]

    def _reply_to(self, count: int) -> bytes:
        return _reply(b"[" + b", ".join(itertools.islice(self._answers, count)) + b"]")

    def chat(self, *, stream: bool) -> bytes:
        return next(self._chats)[stream]


class ZeroEngine(asyncio.Protocol):
    """One connection."""

    def __init__(self, weights: Weights) -> None:
        self._held = b""
        self._weights = weights

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._held += data
        while True:
            head_end = self._held.find(b"\r\n\r\n")
            if head_end < 0:
                return
            head = self._held[:head_end].lower()
            at = head.find(b"content-length:")
            size = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            end = head_end + 4 + size
            if len(self._held) < end:
                return
            body, self._held = self._held[head_end + 4 : end], self._held[end:]
            self._transport.write(self._answer(head, body))

    def _answer(self, head: bytes, body: bytes) -> bytes:
        if head.startswith(b"post /generate "):
            return self._weights.samples(len(json.loads(body)["input_ids"]))
        if head.startswith(b"post /v1/chat/completions "):
            return self._weights.chat(stream=bool(json.loads(body).get("stream")))
        if head.startswith(b"get /model_info "):
            return self._weights.info
        if head.startswith(b"post /update_weights_from_disk "):
            wanted = json.loads(body)
            self._weights.move(wanted["model_path"], wanted["weight_version"])
            return _reply(b'{"success": true, "message": ""}')
        return _reply(b'{"status": "ok"}')


async def serve(port: int, folder: str, role: str) -> None:
    loop = asyncio.get_running_loop()
    weights = Weights(folder, TEXTS[role])
    server = await loop.create_server(lambda: ZeroEngine(weights), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), sys.argv[2], "".join(sys.argv[3:])))
