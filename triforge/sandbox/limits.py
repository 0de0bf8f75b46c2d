"""Limits of a run, and its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Ended = Literal["exit", "wall_time", "cpu_time", "memory", "output"]

MIB: Final = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Bounds of one run.

    Attributes:
        wall_s: seconds from the program's first statement, without those in which it waited for a processor that others had.
        cpu_s: processor seconds of all its processes together, from the interpreter's start to the last one's end; the
            kernel holds each process to it, rounded up.
        memory_bytes: address space of each process, and resident memory of all together.
        processes: processes and threads at a time.
        output_bytes: of standard output, and again of standard error; more ends the run.
        file_bytes: of one file, and of all files in /tmp, the only place that can be written to; at most 4,096 files.
    """

    wall_s: float = 10.0
    cpu_s: float = 5.0
    memory_bytes: int = 512 * MIB
    processes: int = 16
    output_bytes: int = MIB
    file_bytes: int = 16 * MIB

    def __post_init__(self) -> None:
        floors = {
            "wall_s": 0.01,
            "cpu_s": 0.01,
            "memory_bytes": 64 * MIB,
            "processes": 1,
            "output_bytes": 1,
            "file_bytes": 4096,
        }
        for name, floor in floors.items():
            value = getattr(self, name)
            if not floor <= value < 2**40:
                raise ValueError(f"limit {name}: given {value}, expected {floor} to 2**40")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """The result of a run.

    Attributes:
        ended: `exit` when the program ended by itself or was killed from within, else the limit that ended it.
        stdout, stderr: its output, cut at `output_bytes`; bytes that are not UTF-8 are replaced.
        seconds: wall time from its first statement to its end.
        cpu_s: processor time: all of it where the run had a control group, else as much as was seen.
    """

    ended: Ended
    exit_code: int | None
    stdout: str
    stderr: str
    seconds: float
    cpu_s: float

    @property
    def ok(self) -> bool:
        """Return whether it ended by itself with status 0."""
        return self.exit_code == 0
