"""Attempts of a hostile program: each is refused by the kernel or ended at a limit.

Every attempt is bounded by itself, so that a sandbox that failed the test would do little harm to the machine.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path
from textwrap import indent

import pytest

from triforge.sandbox.client import Sandbox
from triforge.sandbox.jail import ENVIRONMENT
from triforge.sandbox.limits import MIB, Limits, RunResult

PRELUDE = """
import ctypes, errno, mmap, os, resource, signal, socket, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    if getattr(libc, name)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), name)
def system(x86_64, aarch64, *arguments):
    call("syscall", x86_64 if os.uname().machine == "x86_64" else aarch64, *arguments)
def at(address):  # a page there
    libc.mmap.restype = ctypes.c_void_p
    assert libc.mmap(ctypes.c_void_p(address), ctypes.c_size_t(4096), 3, 0x32, -1, ctypes.c_long(0)) == address
    return ctypes.c_void_p(address)
def put(path, text):
    os.write(os.open(path, os.O_WRONLY), text.encode())
try:
BODY
    print("escaped")
except OSError as error:
    print(errno.errorcode.get(error.errno, error))
except (ImportError, MemoryError, ValueError) as error:
    print(type(error).__name__)
"""

REFUSED = [
    # network
    ("open a TCP socket", "socket.socket()", "EPERM"),
    ("open a UDP socket", "socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)", "EPERM"),
    ("speak to the hypervisor", "socket.socket(40, socket.SOCK_STREAM)", "EPERM"),
    ("speak to the kernel's routing", "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)", "EPERM"),
    ("sniff packets", "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)", "EPERM"),
    # files
    ("read the passwords", "open('/etc/shadow').read()", "ENOENT"),
    ("read them over a symbolic link", "os.symlink('/etc/shadow', 'x'); open('x').read()", "ENOENT"),
    ("read them over init's root", "open('/proc/1/root/etc/shadow').read()", "ENOENT|EACCES"),
    ("climb out of its root", "open('../' * 40 + 'etc/shadow').read()", "ENOENT"),
    ("read the machine's settings", "os.listdir('/sys')", "ENOENT"),
    ("find installed packages", "raise ImportError if not [p for p in sys.path if 'packages' in p and os.path.isdir(p) and os.listdir(p)] else ValueError", "ImportError"),
    ("change the standard library", "open(os.__file__, 'a')", "EACCES|EROFS"),
    ("add to the standard library", "open(os.path.dirname(os.__file__) + '/x.py', 'w')", "EROFS"),
    ("write to the root", "open('/x', 'w')", "EROFS"),
    ("write among the devices", "open('/dev/x', 'w')", "EROFS"),
    ("fill shared memory", "open('/dev/shm/x', 'w')", "EROFS"),
    ("set the core pattern", "put('/proc/sys/kernel/core_pattern', '|/x')", "EROFS|EACCES"),
    ("press the kernel's keys", "put('/proc/sysrq-trigger', 'h')", "EROFS|EACCES|ENOENT"),
    ("protect itself from the OOM killer", "put('/proc/self/oom_score_adj', '0')", "EROFS"),
    ("set its session's share of the processors", "put('/proc/self/autogroup', '5')", "EROFS|ENOENT"),
    ("make a disk's device", "os.mknod('x', 0o060600, os.makedev(8, 0))", "EPERM"),
    ("read the machine's memory", "open('/dev/mem', 'rb')", "ENOENT"),
    ("type into a terminal", "open('/dev/tty')", "ENXIO"),
    ("write one large file", "open('x', 'wb').write(bytes(20 * 2**20))", "EFBIG"),
    ("fill the disk with small files",
     "for i in range(40): open(str(i), 'wb').write(bytes(2**20))", "ENOSPC"),
    # rights
    ("become root", "os.setuid(0)", "EPERM|EINVAL"),
    ("join a group", "os.setgroups([0])", "EPERM"),
    ("open a namespace of its own", "system(272, 97, 0x10000000)", "EPERM"),
    ("clone into a namespace", "system(56, 220, 0x10000000 | 17, 0, 0, 0, 0)", "EPERM"),
    ("mount", "call('mount', b'none', b'/tmp', b'tmpfs', 0, None)", "EPERM"),
    ("change its root", "os.chroot('/tmp')", "EPERM"),
    ("set the clock", "time.clock_settime(time.CLOCK_REALTIME, 0)", "EPERM"),
    ("raise its limits", "resource.setrlimit(resource.RLIMIT_NPROC, (10**4, 10**4))", "ValueError"),
    ("run before all others", "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))", "EPERM"),
    ("give way to all others", "os.nice(19)", "EPERM"),
    ("run only when no other wants to", "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))", "EPERM"),
    ("load a program into the kernel", "system(321, 280, 0, 0, 0)", "EPERM"),
    ("hide a key in the kernel", "system(248, 217, b'user', b'k', b'v', 1, -4)", "EPERM"),
    ("use the kernel's request loops", "system(425, 425, 1, bytes(120))", "EPERM"),
    ("enter with another table of calls", "call('personality', 8)", "EPERM"),
    # others
    ("signal the service", f"os.kill({os.getpid()}, 9)", "ESRCH"),
    ("signal the service's parent", f"os.kill({os.getppid()}, 0)", "ESRCH"),
    ("trace another process", "system(101, 117, 16, 1, 0, 0)", "EPERM"),
    ("read another process's memory", "system(310, 270, os.getppid(), None, 0, None, 0, 0)", "EPERM"),
    ("say that it began, or ended well", "os.write(3, b'.') + os.write(6, b'{\"exit-code\": 0}')", "EBADF"),
    # memory
    ("take all memory", "bytearray(2**32)", "MemoryError"),
    ("hide memory in a file of none", "os.memfd_create('x')", "EPERM"),
    ("hide memory in a queue", "call('msgget', 0, 0o1600)", "EPERM"),
    ("hide memory in sockets", "held = [socket.socketpair() for _ in range(100)]", "EMFILE"),
    ("hide memory in a segment", "call('shmget', 0, 2**20, 0o1600)", "EPERM"),
    ("hide memory that is shared with no file", "mmap.mmap(-1, 2**20)", "EPERM"),
    ("hide memory in shared zeros", "open('/dev/zero', 'r+b')", "EACCES"),
    ("hide memory in pages of a pipe", "system(278, 75, 1, 0, 0, 0)", "EPERM"),
    ("hide memory on the disk", "mmap.mmap(-1, 2**20, mmap.MAP_PRIVATE).madvise(21)", "EPERM"),
    ("take the machine's huge pages", "mmap.mmap(-1, 2**21, mmap.MAP_PRIVATE | 0x40000)", "EPERM"),
    ("take the machine's slots of requests", "system(206, 0, 1, None)", "EPERM"),
    # processor time
    ("have its dead children counted nowhere", "signal.signal(signal.SIGCHLD, signal.SIG_IGN)", "EPERM"),
    ("likewise, at an address of which one half is 0",
     "call('sigaction', 17, at(2**32), None)", "EPERM"),
]  # fmt: skip


def attempt(sandbox: Sandbox, body: str) -> RunResult:
    program = PRELUDE.replace("BODY", indent(body, "    "))
    return sandbox.run_blocking(program, limits=Limits(wall_s=20.0))


@pytest.mark.parametrize(
    ("body", "refusal"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_a_forbidden_attempt_is_refused(sandbox: Sandbox, body: str, refusal: str) -> None:
    result = attempt(sandbox, body)
    assert result.ok, result.stderr
    assert result.stdout.strip() in refusal.split("|")


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="other machines have one table")
def test_a_call_by_the_numbers_of_another_table_ends_the_program(sandbox: Sandbox) -> None:
    result = attempt(sandbox, "libc.syscall(0x40000000 + 39)")  # x32's getpid
    assert (result.exit_code, result.stdout) == (128 + signal.SIGSYS, "")


def test_a_server_of_the_machine_cannot_be_reached(sandbox: Sandbox) -> None:
    name = f"\0triforge-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        result = attempt(sandbox, f"socket.socket(socket.AF_UNIX).connect({name!r})")
        assert result.stdout == "ECONNREFUSED\n"


def test_hidden_tests_and_the_service_are_not_there(sandbox: Sandbox, tmp_path: Path) -> None:
    hidden = tmp_path / "tests.jsonl"
    hidden.write_text("secret")
    hidden.chmod(0o666)
    for path in (hidden, Path(__file__), Path(sys.executable), Path.cwd() / "pyproject.toml"):
        assert attempt(sandbox, f"open({str(path)!r}, 'rb')").stdout == "ENOENT\n"


def test_the_environment_of_the_service_stays_outside(sandbox: Sandbox) -> None:
    result = attempt(sandbox, "print(dict(os.environ)); print(open('/proc/1/environ').read())")
    seen = result.stdout + result.stderr
    assert "SANDBOX_TEST_SECRET" not in seen
    assert str({**ENVIRONMENT, "PWD": "/tmp"}) in seen


def test_it_holds_no_descriptor_but_its_three_streams(sandbox: Sandbox) -> None:
    result = attempt(sandbox, "print(sorted(os.listdir('/proc/self/fd')))")
    assert result.stdout.startswith("['0', '1', '2', '3']\n")  # 3 reads the list


def test_it_sees_no_process_but_its_own(sandbox: Sandbox) -> None:
    result = attempt(
        sandbox, "print(sorted(name for name in os.listdir('/proc') if name.isdigit()))"
    )
    assert result.stdout.startswith("['1']\n")


def test_it_has_no_right_and_can_win_none_by_starting_a_program(sandbox: Sandbox) -> None:
    result = attempt(sandbox, "print(open('/proc/self/status').read())")
    words = dict(line.split(":\t", 1) for line in result.stdout.splitlines() if ":\t" in line)
    assert {words[name] for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (words["NoNewPrivs"], words["Seccomp"]) == ("1", "2")
    assert set(words["Uid"].split()) == {"65534"}


def test_there_is_no_shell_and_no_other_program(sandbox: Sandbox) -> None:
    result = attempt(
        sandbox, "print(os.system('id') >> 8, os.listdir('/usr/bin'), os.path.exists('/bin'))"
    )
    code, _, rest = result.stdout.partition(" ")
    assert code in ("127", "255")
    assert "sh" not in rest.replace("[]", "").split("'")


def test_killing_all_processes_kills_itself_only(sandbox: Sandbox) -> None:
    result = attempt(sandbox, "os.kill(-1, 9); time.sleep(30)")
    assert result.ended in ("exit", "wall_time")
    assert sandbox.run_blocking("print(1)").stdout == "1\n"


FORK_BOMB = """
import os, time
made = 0
for _ in range(120):
    try:
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
    except OSError:
        continue
    made += 1
print(made)
"""
THREAD_BOMB = """
import threading
gate, made = threading.Event(), 0
for _ in range(120):
    try:
        threading.Thread(target=gate.wait, args=(30,), daemon=True).start()
    except RuntimeError:
        continue
    made += 1
print(made)
"""


@pytest.mark.parametrize("program", [FORK_BOMB, THREAD_BOMB], ids=["fork", "thread"])
def test_a_bomb_of_120_comes_no_further_than_its_limit(sandbox: Sandbox, program: str) -> None:
    result = sandbox.run_blocking(program, limits=Limits(processes=12))
    assert result.ok
    assert int(result.stdout) in (
        11,
        12,
    )  # where runs keep the service's user id, bubblewrap's own is not counted


ENDLESS = "while True: pass"
CHILDREN_SPIN = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        while True: pass
time.sleep(30)
"""
CHILDREN_TAKE = """
import os, time
for _ in range(4):
    if os.fork() == 0: break
held = bytearray(30 * 2**20)
time.sleep(30)
"""
DEAF = "import signal, time\nfor n in range(1, 32):\n    if n not in (9, 17, 19): signal.signal(n, signal.SIG_IGN)\n"
LEADERLESS = """
import ctypes, os, threading, time
for _ in range(3):
    if os.fork() == 0: break
def hold():
    time.sleep(0.2)  # until it has ended
    held = bytearray(60 * 2**20)
    time.sleep(30)
threading.Thread(target=hold).start()
if os.getpid() != 1: ctypes.CDLL(None).syscall(60 if os.uname().machine == "x86_64" else 93, 0)
time.sleep(30)
"""
MANY_FILES = """
import os, time
try:
    for n in range(20_000): os.close(os.open(str(n), os.O_CREAT))
except OSError: pass
time.sleep(30)
"""
BURN_IN_CHILDREN = """
import os, time
for _ in range(30):
    if (child := os.fork()) == 0:
        while time.process_time() < 0.05: pass
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # it stays a zombie
"""
DAEMON = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(60)\n    os._exit(0)\n"

ENDED = [
    ("sleep for ever", "import time; time.sleep(60)", Limits(wall_s=0.3), "wall_time"),
    ("ignore every signal", DEAF + "time.sleep(60)", Limits(wall_s=0.5), "wall_time"),
    ("close its streams and stay", "import os, time\nfor fd in 0, 1, 2: os.close(fd)\ntime.sleep(60)", Limits(wall_s=0.3), "wall_time"),
    ("wait for input that does not come", "import os, time\nr, w = os.pipe()\nos.read(r, 1)", Limits(wall_s=0.3), "wall_time"),
    ("leave a stopped child", "import os, time\nif os.fork() == 0: os.kill(os.getpid(), 19)\nos.wait()", Limits(wall_s=0.5), "wall_time"),
    ("spin", ENDLESS, Limits(cpu_s=0.3, wall_s=60), "cpu_time"),
    ("spin and ignore every signal", DEAF + ENDLESS, Limits(cpu_s=0.3, wall_s=60), "cpu_time"),
    ("spin in children", CHILDREN_SPIN, Limits(cpu_s=0.5, wall_s=60), "cpu_time"),
    ("spin in children that end soon and are never waited for", BURN_IN_CHILDREN, Limits(cpu_s=0.7, wall_s=60, processes=40), "cpu_time"),
    ("take memory by processes whose first thread has ended", LEADERLESS, Limits(memory_bytes=150 * MIB, wall_s=60), "memory"),
    ("fill the kernel with empty files", MANY_FILES, Limits(wall_s=60), "memory"),
    ("take memory by many processes", CHILDREN_TAKE, Limits(memory_bytes=100 * MIB, wall_s=60), "memory"),
    ("flood its output", "while True: print('x' * 4096)", Limits(output_bytes=10_000, wall_s=60), "output"),
    ("flood its errors", "import sys\nwhile True: sys.stderr.write('x' * 4096)", Limits(output_bytes=10_000, wall_s=60), "output"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("program", "limits", "ended"), [row[1:] for row in ENDED], ids=[row[0] for row in ENDED]
)
@pytest.mark.parametrize("bounded_by", ["sandbox", "looking"])
def test_an_endless_program_is_ended(
    request: pytest.FixtureRequest, bounded_by: str, program: str, limits: Limits, ended: str
) -> None:
    result = request.getfixturevalue(bounded_by).run_blocking(program, limits=limits)
    assert (result.ended, result.exit_code, result.ok) == (ended, None, False)
    assert len(result.stdout) <= limits.output_bytes
    assert len(result.stderr) <= limits.output_bytes


def test_processor_time_counts_although_the_program_ended_before_any_look(
    sandbox: Sandbox,
) -> None:
    result = sandbox.run_blocking("print(1)", limits=Limits(cpu_s=0.01))
    assert (result.ended, result.ok) == ("cpu_time", False)
    assert result.cpu_s > 0.01


def test_a_daemon_does_not_outlive_its_program(sandbox: Sandbox) -> None:
    result = sandbox.run_blocking(DAEMON + "print('gone')")
    assert (result.ok, result.stdout) == (True, "gone\n")
    assert result.seconds < 30


def test_a_crash_leaves_no_core_and_is_the_programs_own_end(sandbox: Sandbox) -> None:
    result = sandbox.run_blocking("import os; os.abort()")
    assert result.ended == "exit"
    assert result.exit_code is not None
    assert result.exit_code > 128


def test_a_program_finds_nothing_of_the_one_before(sandbox: Sandbox) -> None:
    assert sandbox.run_blocking("open('/tmp/x', 'w').write('1')").ok
    assert sandbox.run_blocking("import os; print(os.listdir('/tmp'))").stdout == "[]\n"
