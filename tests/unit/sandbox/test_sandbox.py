"""The sandbox as a service uses it: many runs at once, cancelled, lost, missing, and clean after each of them."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

from triforge.errors import InputError, SandboxError
from triforge.sandbox import filters, jail
from triforge.sandbox.client import MAX_BYTES, Sandbox, shared
from triforge.sandbox.kernel import processes
from triforge.sandbox.limits import Limits, RunResult

ROOT = Path(__file__).parents[3]
ADD = "a, b = map(int, input().split())\nprint(a + b)"
FOREVER = "import time\nprint('on', flush=True)\ntime.sleep(60)"


@pytest.fixture
def own(sandbox: Sandbox) -> Iterator[Sandbox]:
    """Make a sandbox of this test alone (only where bubblewrap is)."""
    made = Sandbox(concurrency=3)
    try:
        yield made
    finally:
        made.close()


def runner_pid(of: Sandbox) -> int:
    assert of._runner is not None
    return of._runner._process.pid


def below(pid: int) -> set[int]:
    """Return every living or dead process under `pid`."""
    parents = {pid: one.parent for pid, one in processes().items()}
    found: set[int] = set()
    while more := {child for child, parent in parents.items() if parent in {pid, *found}} - found:
        found |= more
    return found


def owner(pid: int) -> int:
    """Return the user id of a process, -1 when it has just ended."""
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except FileNotFoundError:
        return -1


def test_a_program_reads_its_input_and_its_output_comes_back(sandbox: Sandbox) -> None:
    result = sandbox.run_blocking(ADD, "20 22\n")
    assert (result.ended, result.exit_code, result.stdout, result.ok) == ("exit", 0, "42\n", True)
    assert 0 < result.seconds < 30
    with pytest.raises(FrozenInstanceError):
        result.stdout = "43"  # type: ignore[misc]


def test_what_the_program_does_wrong_is_its_result(sandbox: Sandbox) -> None:
    wrong = {"raise SystemExit(3)": 3, "def f(:": 1, "1 / 0": 1, "\x00": 1}
    for program, code in wrong.items():
        result = sandbox.run_blocking(program)
        assert (result.ended, result.exit_code, result.ok) == ("exit", code, False), program
    assert "ZeroDivisionError" in sandbox.run_blocking("1 / 0").stderr


def test_text_of_any_kind_survives(sandbox: Sandbox) -> None:
    odd = "ü ☃ \U0001f600 \\ \" ' \t"
    assert sandbox.run_blocking("print(input())", odd).stdout == f"{odd}\n"
    assert sandbox.run_blocking("print(ascii(input()))", "\ud800").stdout == "'?'\n"
    raw = sandbox.run_blocking("import os; os.write(1, b'\\xff!')")
    assert raw.stdout == "\ufffd!"


def test_large_input_and_output_pass_whole(sandbox: Sandbox) -> None:
    text = "0123456789" * 200_000
    limits = Limits(output_bytes=4 * 2**20)
    assert sandbox.run_blocking("print(input()[::-1], end='')", text, limits).stdout == text[::-1]


def test_the_same_program_does_the_same_every_time(sandbox: Sandbox) -> None:
    program = "print({*'the order of a set of words'.split()})"
    assert len({sandbox.run_blocking(program).stdout for _ in range(3)}) == 1


async def test_many_run_at_once_and_none_is_mixed_up(own: Sandbox) -> None:
    results = await asyncio.gather(*(own.run(ADD, f"{n} {n}") for n in range(12)))
    assert [result.stdout for result in results] == [f"{2 * n}\n" for n in range(12)]


def test_threads_with_loops_of_their_own_share_one_sandbox(own: Sandbox) -> None:
    outputs: dict[int, str] = {}

    def work(n: int) -> None:
        outputs[n] = asyncio.run(own.run(ADD, f"{n} 1")).stdout

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outputs == {n: f"{n + 1}\n" for n in range(6)}


async def test_a_cancelled_call_kills_its_program(own: Sandbox) -> None:
    assert (await own.run("print(1)")).ok
    calls = [asyncio.ensure_future(own.run(FOREVER)) for _ in range(5)]  # two of them wait
    await asyncio.sleep(0)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert (await own.run("print(2)")).stdout == "2\n"  # there is room again


def test_nothing_is_left_behind(own: Sandbox) -> None:
    own.run_blocking("print(1)")
    runner = runner_pid(own)
    open_before = len(list(Path(f"/proc/{runner}/fd").iterdir()))
    daemon = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\n"
    for program in (daemon, "1 / 0", "import os; os.abort()", "while 1: print('x' * 999)"):
        own.run_blocking(program)
        own.run_blocking(FOREVER, limits=Limits(wall_s=0.05))
        assert (
            below(runner) == set()
        )  # neither alive nor a zombie, at the very moment of the answer
    assert len(list(Path(f"/proc/{runner}/fd").iterdir())) == open_before
    own.close()
    assert not Path(f"/proc/{runner}").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives every run a user id of its own")
async def test_every_run_has_a_user_id_of_its_own(own: Sandbox) -> None:
    own.run_blocking("print(1)")
    calls = [asyncio.ensure_future(own.run(FOREVER, limits=Limits(wall_s=5))) for _ in range(3)]
    seen: set[int] = set()
    async with asyncio.timeout(30):
        while len(seen) < 3:
            await asyncio.sleep(0.01)
            seen |= {uid for uid in map(owner, below(runner_pid(own))) if uid >= jail.FIRST_UID}
    assert all(uid < jail.LAST_UID for uid in seen)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a namespace of process ids")
def test_runners_of_two_containers_share_no_user_ids() -> None:
    code = "import os; from triforge.sandbox.runner import own_ids; print(os.getpid(), *own_ids(0), flush=True); input()"
    command = ["unshare", "--pid", "--fork", sys.executable, "-c", code]
    runs = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    lines = [run.stdout.readline() for run in runs if run.stdout]  # both live: two namespaces
    for run in runs:
        run.communicate("\n", timeout=30)
    if not all(lines):
        pytest.skip("this machine makes no namespaces of process ids")
    (one, *ids), (other, *others) = (map(int, line.split()) for line in lines)
    assert one == other
    assert len({*ids, *others}) == len(ids) + len(others)


async def test_a_lost_runner_is_no_result_and_the_next_run_has_another(own: Sandbox) -> None:
    assert (await own.run("print(1)")).ok
    runner = runner_pid(own)
    running = asyncio.ensure_future(own.run(FOREVER))
    async with asyncio.timeout(30):
        while not below(runner):  # noqa: ASYNC110  processes give no notice
            await asyncio.sleep(0.01)
    orphans = below(runner)
    os.kill(runner, signal.SIGKILL)
    with pytest.raises(SandboxError, match="was lost") as caught:
        await running
    assert caught.value.retryable
    assert (await own.run("print(2)")).stdout == "2\n"
    async with asyncio.timeout(30):  # the kernel kills what the runner had started
        while alive := [pid for pid in orphans if _lives(pid)]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert alive == []


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_without_bubblewrap_programs_are_refused_with_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SandboxError, match="apt-get install bubblewrap") as caught:
        Sandbox().run_blocking("print(1)")
    assert not caught.value.retryable


def broken(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> SandboxError:
    """Return the error of a run whose bubblewrap does `script`."""
    fake = folder / "bwrap"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    for above in (folder, *folder.parents):
        if above.is_relative_to(tempfile.gettempdir()):
            above.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    made = Sandbox()
    try:
        with pytest.raises(SandboxError) as caught:
            made.run_blocking("print(1)")
        return caught.value
    finally:
        made.close()


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("echo 'bwrap: No permissions to create new namespace' >&2; exit 1", "user namespaces"),
        ("exit 0", "did not start: nothing began"),
        ("kill -9 $$", "did not start"),
        ("echo '{\"exit-code\": 0}' >&6; exit 0", "did not start"),
    ],
)
def test_a_sandbox_that_does_not_start_is_an_error_and_never_a_result(
    script: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        error = broken(Path(folder), script, monkeypatch)
    assert sentence in error.detail
    assert error.retryable
    assert error.kind == "sandbox"


def test_an_unexpected_error_of_the_runner_leaves_no_caller_waiting(own: Sandbox) -> None:
    own.check()
    assert own._runner is not None
    future = own._runner.submit({"program": "", "stdin": "", "limits": {}})
    with pytest.raises(SandboxError, match="was lost"):
        future.result(timeout=20.0)
    own.check()


def test_check_says_whether_programs_can_run(own: Sandbox) -> None:
    own.check()


@pytest.mark.skipif(os.geteuid() != 0, reason="the whole suite runs as another user than root")
def test_another_user_than_root_can_run_programs_too(sandbox: Sandbox) -> None:
    script = (
        "import logging, threading; logging.basicConfig(); from triforge.sandbox.client import Sandbox\n"
        "for _ in range(40): threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "many = 'import os,time\\nfor n in range(40):\\n  try: pid = os.fork()\\n'"
        "  '  except OSError: print(n); break\\n  if not pid: time.sleep(9)'\n"
        "s = Sandbox(); print(s.run_blocking('print(6 * 7)').stdout, end='')\n"
        "print(s.run_blocking(many).stdout, end='')\n"
        "files = 'for n in range(9999): open(str(n), \"w\").close()\\nimport time; time.sleep(30)'\n"
        "print(s.run_blocking(files).ended); s.close()"
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        for name in ("__init__.py", "errors.py", "sandbox"):
            Path(folder, "triforge").mkdir(exist_ok=True)
            copy = shutil.copytree if name == "sandbox" else shutil.copy
            copy(ROOT / "triforge" / name, Path(folder, "triforge", name))
        done = subprocess.run(
            [str(jail.interpreter()), "-c", script],
            cwd=folder,
            env={"PATH": os.environ["PATH"]},
            user=65534,
            group=65534,
            extra_groups=[],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.stdout == f"42\n{Limits().processes - 1}\nmemory\n", done.stderr
    assert "under this service's own user id 65534" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can lose the right")
def test_files_are_counted_where_root_may_not_look_into_processes_of_others(
    sandbox: Sandbox,
) -> None:
    """As in a container with Docker's own capabilities."""
    script = (
        "import ctypes, os, sys\n"
        "if len(sys.argv) == 1:\n"
        "    assert ctypes.CDLL(None).prctl(24, 19, 0, 0, 0) == 0  # PR_CAPBSET_DROP, CAP_SYS_PTRACE\n"
        "    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], 'without'])\n"
        "from triforge.sandbox.client import Sandbox\n"
        "files = 'for n in range(9999): open(str(n), \"w\").close()\\nimport time; time.sleep(9)'\n"
        "s = Sandbox(); print(s.run_blocking(files).ended); s.close()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "memory\n", done.stderr


def test_limits_are_checked_before_anything_starts() -> None:
    for name in ("wall_s", "cpu_s", "memory_bytes", "processes", "output_bytes", "file_bytes"):
        for given in (0, 2**40):
            with pytest.raises(ValueError, match=f"limit {name}: given {given}"):
                replace(Limits(), **{name: given})
    with pytest.raises(InputError, match="at most"):
        Sandbox().run_blocking("x" * (MAX_BYTES + 1))


def test_without_libseccomp_programs_are_refused_with_the_package_to_install() -> None:
    with pytest.raises(SandboxError, match="apt-get install libseccomp2") as caught:
        filters.program(library="libabsent.so.9")
    assert not caught.value.retryable
    assert filters.program(for_shell=True) != filters.program()


def test_a_result_is_ok_only_when_the_program_ended_by_itself_with_status_0() -> None:
    good = RunResult(ended="exit", exit_code=0, stdout="", stderr="", seconds=0.1, cpu_s=0.1)
    assert good.ok
    assert not replace(good, exit_code=1).ok
    assert not replace(good, ended="wall_time", exit_code=None).ok


def test_the_shared_sandbox_is_one() -> None:
    assert shared() is shared()
