"""The program as it is installed, and all services behind one port with canned answers."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from triforge.cli import main
from triforge.types import Event, PoolState, RunState, Verdict

Ended = tuple[int, str, str]
APIS = (
    "POLICY_MODEL",
    "REWARD_MODEL",
    "REWRITER_MODEL",
    "REWARD",
    "ENV_ADAPTER",
    "TRAINER",
    "DASHBOARD",
)


def run_state(status: str = "running", reason: str = "", **changes: object) -> RunState:
    fields: dict[str, object] = {
        "id": "run-1", "name": "mine [bold]", "pool_id": "pool-1", "status": status, "step": 2, "steps": 9,
        "policy_version": 3, "reward_version": 2, "created_at": 0.0, "updated_at": 0.0, "reason": reason,
    }  # fmt: skip
    return RunState.model_validate(fields | changes)


WORSE = Verdict(
    word="worse", text="worse: held-out success fell", warnings=("the policy ran off [far]",), advice="smaller steps",
    options=("--set trainer.policy.learning_rate=1e-07",),
)  # fmt: skip
"""A verdict, and below it as it is printed: with the command that began the run, and without."""
_SHOWN = "worse: held-out success fell\nwarning: the policy ran off [far]\nnext: smaller steps"
PRINTED = _SHOWN + ": {} --set trainer.policy.learning_rate=1e-07\n"
FIELDS = _SHOWN + ", with trainer.policy.learning_rate = 1e-07\n"
POOL = PoolState(
    id="pool-1", name="kitchen", environment="household", created_at=0.0,
    tasks={"train": {"active": 3}}, proposals={"accepted": 1},
)  # fmt: skip


class Services:
    """All services behind one port, with canned answers.

    Attributes:
        answers: (status, content type, body) of a method and path.
        asked: every request with its body.
        heard: functions that are called with the body of a request before it is answered.
        date: what the server believes the time is; empty is the right one.
    """

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, str, bytes]] = {}
        self.asked: list[tuple[str, Any]] = []
        self.heard: dict[str, Callable[[Any], None]] = {}
        self.date = ""
        services = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                what = f"{self.command} {self.path.split('?')[0]}"
                services.asked.append((what, json.loads(body) if body else None))
                services.heard.get(what, bool)(services.asked[-1][1])
                status, kind, answer = services.answers.get(what, (404, "text/plain", b"nothing"))
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_POST = do_PATCH = _answer  # noqa: N815

            def date_time_string(self, timestamp: float | None = None) -> str:
                return services.date or super().date_time_string(timestamp)

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def say(self, what: str, answer: Any, *, status: int = 200) -> None:
        text = answer if isinstance(answer, str) else answer.model_dump_json()
        self.answers[what] = (status, "application/json", text.encode())

    def refuse(self, what: str, status: int, kind: str, detail: str, *problems: str) -> None:
        body = {"type": f"urn:triforge:{kind}", "title": kind, "status": status, "detail": detail}
        text = json.dumps(body | ({"problems": problems} if problems else {}))
        self.answers[what] = (status, "application/problem+json", text.encode())

    def tell(self, run_id: str, *events: Event) -> None:
        lines = "".join(f"id: {n}-0\ndata: {e.model_dump_json()}\n\n" for n, e in enumerate(events))
        path = f"GET /v1/runs/{run_id}/events"
        self.answers[path] = (200, "text/event-stream", lines.encode())

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> Iterator[Services]:
    made = Services()
    for api in APIS:
        monkeypatch.setenv(f"TRIFORGE_{api}_URL", made.url)
    yield made
    made.close()


@pytest.fixture
def triforge(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Ended]:
    """The program as it is installed: arguments in; exit code, output and complaints out."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")

    def call(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["triforge", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return call


Triforge = Callable[..., Ended]
