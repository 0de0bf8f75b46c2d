"""Log lines: their fields, and the secrets that they never show."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import threading
from typing import Any

import pytest

from triforge import __version__
from triforge.telemetry import about, hide, known, masked
from triforge.telemetry.ids import carried, common, only, receive_ids
from triforge.telemetry.logs import JsonLines, TextLines


def record(message: str, *args: object, error: BaseException | None = None) -> logging.LogRecord:
    info = (type(error), error, error.__traceback__) if error else None
    return logging.LogRecord("a.logger", logging.WARNING, __file__, 1, message, args, info)


def json_of(line: logging.LogRecord) -> dict[str, Any]:
    text = JsonLines("reward", "judge-worker").format(line)
    assert "\n" not in text
    found: dict[str, Any] = json.loads(text)
    return found


def test_a_line_says_when_how_bad_where_from_and_whom_it_is_about() -> None:
    with about(run="r1", group="g1", step=3, policy=0, task=""):
        line = json_of(record("%s is late", "g1"))
    assert line.pop("time").endswith("Z")
    assert line.pop("pid") > 0
    assert line == {
        "level": "warning", "service": "reward", "process": "judge-worker", "logger": "a.logger",
        "message": "g1 is late", "run": "r1", "group": "g1", "step": "3", "policy": "0",
    }  # fmt: skip


def test_ids_end_with_their_block_and_reach_tasks_and_threads_that_begin_inside() -> None:
    seen: list[object] = []

    async def inner() -> None:
        with about(trajectory="t"):
            await asyncio.sleep(0)
            seen.append(dict(known()))

    async def main() -> None:
        with about(run="r"):
            job = asyncio.create_task(inner())
            await asyncio.to_thread(lambda: seen.append(dict(known())))
        await job

    asyncio.run(main())
    assert {"run": "r"} in seen
    assert {"run": "r", "trajectory": "t"} in seen
    assert known() == {}
    thread = threading.Thread(target=lambda: seen.append(dict(known())))
    thread.start()
    thread.join()
    assert seen[-1] == {}


def test_ids_travel_in_a_header_whatever_stands_in_them() -> None:
    with about(run="r,1;=%", task="ä\n"):
        header = carried().get("baggage", "")
    assert header.isascii()
    assert not set("\r\n ") & set(header)

    async def there() -> dict[str, str]:
        receive_ids(f"other=x,{header};p=1, triforge.colour=red".encode())
        return dict(known())

    assert asyncio.run(there()) == {"run": "r,1;=%", "task": "ä\n"}


@pytest.mark.parametrize(
    "header", [b"", b",,=,;", b"triforge.run", b"\xff\xfe=1", b"triforge.run=%ff%zz" * 999]
)
def test_a_foreign_header_breaks_nothing(header: bytes) -> None:
    async def there() -> dict[str, str]:
        receive_ids(header)
        return dict(known())

    found = asyncio.run(there())
    assert set(found) <= {"run"}
    assert all(len(value) <= 200 for value in found.values())


@pytest.mark.parametrize(
    "header", ["other=x", "triforge.run=é", "triforge.run=" + "%F0%9F%92%A9" * 180, "x" * 60_000]
)
def test_what_goes_on_to_others_is_short_ascii_and_ours(header: str) -> None:
    async def there() -> str:
        receive_ids(header.encode("latin-1"))
        return carried().get("baggage", "")

    found = asyncio.run(there())
    assert found.isascii()
    assert len(found) <= 2048
    assert "other" not in found


def test_masking_takes_no_longer_than_the_text_is_long() -> None:
    for text in ("a-" * 50_000, "bearer " * 20_000, "://" * 50_000, "bearer" + " " * 100_000):
        assert masked(text) == text


def test_work_for_several_is_about_what_they_have_in_common() -> None:
    first, second = {"run": "r", "trajectory": "a"}, {"run": "r", "trajectory": "b"}
    assert common([first, second]) == {"run": "r"}
    assert common([first]) == first
    with about(group="g"), only({"run": "r"}):
        assert known() == {"run": "r"}


def test_a_text_line_is_one_line_and_cannot_be_forged() -> None:
    with about(run="r"):
        text = TextLines("policy", "policy").format(record("given %s", "a\n2026 ERROR b\x1b[2J\r"))
    assert text.count("\n") == 0
    assert "\x1b" not in text
    assert "WARNING policy/policy a.logger: given a\\n2026 ERROR b" in text
    assert text.endswith("[run=r]")


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("Authorization: Bearer abc123def", "Authorization: Bearer ***"),
        ("postgresql+psycopg://triforge:s3cr:t@db/x", "postgresql+psycopg://triforge:***@db/x"),
        ("TRIFORGE_API_KEY=abcdefgh and more", "TRIFORGE_API_KEY=*** and more"),
        ('{"password": "hunter22"}', '{"password": "***"}'),
    ],
)
def test_what_looks_like_a_secret_is_masked(text: str, left: str) -> None:
    assert masked(text) == left


@pytest.mark.parametrize(
    "text",
    [
        "a bearer token is needed: send the service's TRIFORGE_API_KEY as `Authorization: Bearer ...`",
        "batch b: version 8, loss 0.1, 1234567 tokens, max_token=1234567",
        "http://policy-model:8001/v1/generate",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert masked(text) == text


def test_a_secret_of_the_process_is_masked_also_in_a_traceback() -> None:
    hide("zephyr-quartz", "zephyr", "", "short")
    assert masked("x=zephyr-quartz, zephyr; short") == "x=***, ***; short"
    try:
        raise ValueError("sent zephyr-quartz")
    except ValueError as error:
        line = record("zephyr-quartz was sent", error=error)
    for form in (JsonLines("a", "b"), TextLines("a", "b")):
        assert "zephyr" not in form.format(line)
        assert "ValueError" in form.format(line)


PROGRAM = """
import logging, warnings
from triforge.telemetry import about, begin, server_options
begin("trainer", "api")
with about(run="r"):
    logging.getLogger("triforge").info("hello")
    logging.getLogger("httpx").info("a request")
    logging.getLogger("triforge").debug("a detail")
    warnings.warn("old")
logging.getLogger("triforge").info("access is %s", server_options()["access_log"])
"""


def lines(**environ: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_every_line_of_a_process_is_json_where_the_environment_says_so() -> None:
    begins, *found = [json.loads(line) for line in lines(TRIFORGE_LOG="json", RANK="1")]
    assert begins["message"] == f"triforge {__version__} starts"
    assert [line["message"] for line in found][:1] == ["hello"]
    assert [line["logger"] for line in found] == ["triforge", "py.warnings", "triforge"]
    assert {line["process"] for line in found} == {"api-1"}
    assert found[0]["run"] == "r"
    assert found[-1]["message"] == "access is False"


def test_an_impossible_form_is_logged_and_text_is_used() -> None:
    found = lines(TRIFORGE_LOG="xml", TRIFORGE_LOG_LEVEL="loud")
    assert "given 'xml', expected text or json" in found[0]
    assert "given 'loud', expected one of debug, info" in found[1]
    assert "hello [run=r]" in found[3]
