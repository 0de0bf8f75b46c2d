"""What lies in a desktop's folder before anything starts: the window manager's rules and the way into the shell.

The terminal's shell is where a model's commands run. It lives inside bubblewrap: no network, a read-only system, its own
processes, its own /tmp, and a home folder that nothing else uses. Screen, window manager and terminal emulator run outside of
it; where the service is root they have a user id that nothing else has. The shell reaches none of them.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Final

from triforge.sandbox import filters, jail

FOLDERS: Final = ("home", "signal", "screen", "own")
AGENTS: Final = ("home", "signal")  # those that the shell can write to
PROCESSES: Final = 128  # of the shell and all below it
COOKIE: Final = "authority"  # who may speak to the screen: ours; window manager and terminal have a copy of their own
_LIMITS: Final = (
    "ulimit -v 1048576; ulimit -f 20480; ulimit -t 60"  # KiB, blocks of 512 bytes, seconds
)
_OPENBOX: Final = """\
<?xml version="1.0" encoding="UTF-8"?>
<!-- No menus and no keys: nothing can be started from the window manager. -->
<openbox_config xmlns="http://openbox.org/3.4/rc">
  <focus><focusNew>yes</focusNew><followMouse>no</followMouse></focus>
  <placement><policy>Smart</policy></placement>
  <desktops><number>1</number><popupTime>0</popupTime></desktops>
  <theme><name>Clearlooks</name><titleLayout>LC</titleLayout><animateIconify>no</animateIconify></theme>
  <keyboard></keyboard>
  <mouse>
    <dragThreshold>3</dragThreshold>
    <context name="Titlebar">
      <mousebind button="Left" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
      <mousebind button="Left" action="Drag"><action name="Move"/></mousebind>
    </context>
    <context name="Close">
      <mousebind button="Left" action="Click"><action name="Close"/></mousebind>
    </context>
    <context name="Client">
      <mousebind button="Left" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
    </context>
  </mouse>
</openbox_config>
"""


def furnish(folder: Path, prepare: Callable[[Path], None]) -> None:
    """Lay out a fresh folder; `prepare` writes into the home folder."""
    folder.chmod(0o711)  # the programs of another user pass through it
    for name in FOLDERS:
        (folder / name).mkdir()
    prepare(folder / "home")
    (folder / "filter").write_bytes(filters.program())
    (folder / "passwd").write_text("agent:x:1000:1000::/home/agent:/bin/bash\n")
    (folder / "openbox.xml").write_text(_OPENBOX)
    cookie = os.urandom(16)
    for place in (folder / COOKIE, folder / "own" / COOKIE):
        write_cookie(place, cookie)
    with_filter = f"exec 9<{shlex.quote(str(folder / 'filter'))}"
    (folder / "shell.sh").write_text(
        f"{_LIMITS}\n{with_filter}\nexec {shlex.join(_shell(folder))}\n"
    )


def write_cookie(path: Path, cookie: bytes) -> None:
    """An X authority file that holds for every display and host, readable by its owner only."""
    name = b"MIT-MAGIC-COOKIE-1"
    parts = (b"", b"", name, cookie)  # address, display, what it is, the secret
    data = b"\xff\xff" + b"".join(len(part).to_bytes(2, "big") + part for part in parts)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def bounded() -> list[str]:
    """What bubblewrap is started by: in a user namespace of its own only its own processes count (Linux 5.14 and newer)."""
    return ["prlimit", f"--nproc={PROCESSES}:{PROCESSES}"]


def _shell(folder: Path) -> list[str]:
    """The command line of the sandboxed shell; descriptor 9 is the filter of system calls."""
    words = [*bounded(), jail.find(), "--unshare-all", "--die-with-parent", "--cap-drop", "ALL"]
    words += ["--uid", "1000", "--gid", "1000", "--hostname", "desktop", "--clearenv"]
    variables = {
        "HOME": "/home/agent",
        "LANG": "C.UTF-8",
        "PATH": "/usr/bin:/bin",
        "PROMPT_COMMAND": "printf . >>/run/prompts/prompts",
        "PS1": "\\w\\$ ",
        "TERM": "xterm",
        "USER": "agent",
    }
    for name, value in variables.items():
        words += ["--setenv", name, value]
    words += ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "lib", "lib64"):
        words += ["--symlink", f"usr/{name}", f"/{name}"]
    for path in ("/etc/alternatives", "/etc/ld.so.cache"):
        words += ["--ro-bind-try", path, path]
    words += ["--ro-bind", str(folder / "passwd"), "/etc/passwd"]
    words += ["--proc", "/proc", "--dev", "/dev", "--size", str(2**24), "--tmpfs", "/tmp"]  # noqa: S108
    words += ["--bind", str(folder / "signal"), "/run/prompts"]
    words += ["--bind", str(folder / "home"), "/home/agent", "--chdir", "/home/agent"]
    words += ["--remount-ro", "/", "--seccomp", "9"]
    return [*words, "--", "/bin/bash", "--norc", "--noprofile", "-i"]
