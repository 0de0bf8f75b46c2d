"""Running programs that a model has written: bounded in every direction, and gone when they are done.

    from triforge.sandbox.client import Sandbox
    from triforge.sandbox.limits import Limits

    result = await Sandbox().run("print(int(input()) + 1)", stdin="41", limits=Limits(wall_s=2.0))
    result.ok, result.stdout.strip()    # True, "42"

    client    `Sandbox`: the API, for any thread and any event loop of a service
    limits    `Limits` in, `RunResult` out
    jail      how bubblewrap is called: what a program sees, and nothing else; with a shell or without
    filters   the system calls that it may not make
    runner    the process beside the service that starts, bounds and reaps; `runs`, `kernel` and `groups` are its parts
    cases     programs against tests: input in, output compared

What must stay secret from a program (hidden tests, expected output) is never given to it: it gets its source and its
standard input. What comes back is text; the caller compares it. A sandbox that cannot start is a `SandboxError`, an
infrastructure failure, and never the program's result.
"""
