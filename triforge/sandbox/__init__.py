"""Sandboxed runs of programs that a model wrote: bounded in every direction, and gone when they are done.

    from triforge.sandbox.client import Sandbox
    from triforge.sandbox.limits import Limits

    result = await Sandbox().run("print(int(input()) + 1)", stdin="41", limits=Limits(wall_s=2.0))
    result.ok, result.stdout.strip()    # True, "42"

    client    `Sandbox`: the API, for any thread and any event loop of a service
    limits    `Limits` in, `RunResult` out
    jail      the bubblewrap command: what a program sees of the machine
    filters   the system calls that it may not make, by libseccomp
    runner    the process that starts, bounds and reaps; `runs`, `kernel` and `groups` are its parts
    cases     programs on tests: input in, output compared

A program gets its source and its standard input, so hidden tests and expected outputs stay secret. Its output is text, which
the caller compares. A sandbox that cannot start is a `SandboxError`, an infrastructure failure and never a result.
"""
