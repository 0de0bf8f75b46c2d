"""A suite that behaves badly on request; run as a module by the tests of the worker."""

from __future__ import annotations

import os
import random
import sys
import time

from triforge.environments.worker_loop import Refused, serve


def add(a: int, b: int) -> int:
    print("this is not an answer")  # noqa: T201
    random.seed(a)
    return a + b


def refuse() -> None:
    raise Refused("no such thing")


def fail() -> None:
    raise ZeroDivisionError("by zero")


def hang() -> None:
    time.sleep(3600)


def spin() -> None:
    while True:
        pass


def die() -> None:
    os._exit(7)


def environment() -> list[str]:
    return sorted(os.environ)


def missing() -> dict[str, object]:
    raise ImportError("No module named 'nothing'")


if __name__ == "__main__":
    handlers = {
        "add": add,
        "refuse": refuse,
        "fail": fail,
        "hang": hang,
        "spin": spin,
        "die": die,
        "environment": environment,
    }
    serve(missing if sys.argv[1:] == ["missing"] else lambda: handlers)
