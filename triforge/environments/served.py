"""A function of one process that others of the same machine call: a reward function of a notebook, for the rollout workers.

Its address `unix:SOCKET#NAME(PARAMETERS)` stands where the path of a function may stand. Requests are HTTP over a Unix socket
in a folder of mode 700; arguments and results are JSON, and the function runs in threads of its own process.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import cache
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socket import AF_UNIX, socket
from socketserver import ThreadingUnixStreamServer
from threading import Thread
from typing import Any, Final, SupportsFloat

from triforge.errors import EnvError, InputError, raised_at, raised_in

PREFIX: Final = "unix:"
_HERE: Final[dict[str, Callable[..., Any]]] = {}  # functions that this process serves, by address


def finished(result: Any) -> Any:
    """Return the result of a call; that of a coroutine when it has ended, on one event loop for all of them."""
    if not inspect.isawaitable(result):
        return result

    async def awaited() -> Any:
        return await result

    return asyncio.run_coroutine_threadsafe(awaited(), _loop()).result()


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, daemon=True, name="coroutines").start()
    return loop


@contextmanager
def serving(function: Callable[..., Any], path: Path) -> Iterator[str]:
    """Serve a function meanwhile; yield its address.

    Raises:
        InputError: another process serves one at this socket.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if _answers(path):
        raise InputError(
            f"reward: another process serves its function at {path}, that of a training in the same state folder: name "
            "another `state`"
        )
    path.unlink(missing_ok=True)
    name = getattr(function, "__name__", type(function).__name__)
    names = [
        str(one.replace(annotation=one.empty, default=one.empty)) for one in _parameters(function)
    ]
    address = f"{PREFIX}{path}#{name}({', '.join(names)})"
    try:
        server = _Server(str(path), _Handler)
    except OSError as error:  # such as a path of more than 107 bytes
        raise InputError(
            f"reward: a socket at {path}: {error}; XDG_CACHE_HOME names another folder for it"
        ) from error
    server.function = _HERE[address] = function
    Thread(target=server.serve_forever, daemon=True, name="served").start()
    try:
        yield address
    finally:
        server.shutdown()
        server.server_close()
        path.unlink(missing_ok=True)
        del _HERE[address]


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return [*inspect.signature(function).parameters.values()]


class _Server(ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 128
    function: Callable[..., Any]


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        parameters = _parameters(self.server.function)
        named = [[one.name, int(one.kind), one.default is one.empty] for one in parameters]
        self._send(json.dumps(named).encode())

    def do_POST(self) -> None:
        given = json.loads(self.rfile.read(int(self.headers["content-length"])))
        try:
            returned = finished(self.server.function(**given))
            body = json.dumps({"returned": returned}, default=_plain)
        except Exception as error:  # noqa: BLE001  the caller's process tells
            text = f"{type(error).__name__}: {error}{raised_at(error)}"
            body = json.dumps({"text": text, "raised": raised_in(error)})
        self._send(body.encode())

    def _send(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing: errors are in the responses."""


def _plain(value: Any) -> object:
    """Return arrays, tensors and iterators as lists, other numbers as floats; the caller refuses what is left."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Iterable):
        return [*value]
    return float(value) if isinstance(value, SupportsFloat) else repr(value)


class _Connection(HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("served")
        self._path = path

    def connect(self) -> None:
        self.sock = socket(AF_UNIX)
        self.sock.connect(self._path)


class ServedFunction:
    """A function that another process serves."""

    def __init__(self, address: str) -> None:
        self._path, _, self.__name__ = address.removeprefix(PREFIX).partition("#")
        parameters = [
            inspect.Parameter(name, kind, default=inspect.Parameter.empty if demanded else None)
            for name, kind, demanded in self._ask("GET")
        ]
        self.__signature__ = inspect.Signature(parameters)

    def __call__(self, **keywords: object) -> Any:
        """Call the function; an `EnvError` with its exception if it raises."""
        result = self._ask("POST", json.dumps(keywords))
        if "returned" in result:
            return result["returned"]
        error = EnvError(result["text"])
        error.raised = result["raised"]
        raise error

    def _ask(self, method: str, body: str | None = None) -> Any:
        with closing(_Connection(self._path)) as connection:
            try:
                connection.request(method, "/", body)
                return json.loads(connection.getresponse().read())
            except (OSError, HTTPException, ValueError) as error:
                raise EnvError(
                    f"the process that gave the function {self.__name__} does not answer on this machine ({error}); it has to "
                    "live while the run plays: resume the run where the function is, triforge.train(resume=RUN, reward=FUNCTION)"
                ) from error


def _answers(path: Path) -> bool:
    with socket(AF_UNIX) as tried:
        return tried.connect_ex(str(path)) == 0


@cache
def _connected(address: str) -> ServedFunction:
    return ServedFunction(address)


def find(address: str) -> Callable[..., Any]:
    """Return the function of an address; an `EnvError` if its process does not answer."""
    return _HERE.get(address) or _connected(address)
