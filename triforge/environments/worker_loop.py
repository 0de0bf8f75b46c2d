"""The suite's side of `worker`: questions from stdin, answers to stdout, all prints of the suite to stderr."""

from __future__ import annotations

import json
import math
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

# bytes of address space, beyond which a generator fails
_MEMORY = 8 * 2**30
_WATCH_S = 2.0

Handlers = Mapping[str, Callable[..., Any]]


class Refused(ValueError):  # noqa: N818 (an answer, not a fault)
    """The request cannot be met, for the reason in the text."""


def serve(load: Callable[[], Handlers]) -> None:
    """Answer until stdin ends.

    Args:
        load: imports the suite and returns its operations by name; each takes keyword arguments and returns JSON.
    """
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # prints of the suite go to stderr
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    try:
        handlers = load()
    except ImportError as error:
        _say(out, {"error": f"{error}; install the family's extra"})
        return
    _say(out, {"answer": "ready"})
    for line in sys.stdin:
        _say(out, _reply(handlers, json.loads(line)))


def _reply(handlers: Handlers, question: dict[str, Any]) -> dict[str, Any]:
    """Answer one question within `cpu_s` of processor time; after that the kernel ends the process with SIGXCPU.

    The kernel counts whole seconds, so a limit is rounded up. Its clock stops while other processes run, so a question
    that is too slow here is too slow on an idle machine, too.
    """
    op, limit = question.pop("op"), question.pop("cpu_s")
    until = math.ceil(time.process_time() + limit)
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(
        resource.RLIMIT_CPU, (until if most == resource.RLIM_INFINITY else min(until, most), most)
    )
    try:
        return {"answer": handlers[op](**question)}
    except Refused as refused:
        return {"error": str(refused), "input": True}
    except Exception as error:  # noqa: BLE001 (a suite may raise anything)
        return {"error": f"{op} raised {type(error).__name__}: {str(error)[:300]}"}
    finally:
        resource.setrlimit(resource.RLIMIT_CPU, (most, most))


def _say(out: Any, message: dict[str, Any]) -> None:
    out.write(json.dumps(message) + "\n")
    out.flush()


def _end_with_parent(parent: int) -> None:
    """End the process with its parent: a killed parent cannot, and a suite in a loop does not read the end of stdin."""
    while os.getppid() == parent:
        time.sleep(_WATCH_S)
    os._exit(1)
