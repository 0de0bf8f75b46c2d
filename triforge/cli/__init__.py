"""The command line. `triforge COMMAND --help` documents each command.

main      the entry point; `commands` the table of commands; `terminal` printing; `deployment` addresses and clients
up        up; `status` has status, logs and doctor
train     train; `training` the same for Python, `checks` and `kept` what is refused before a start, `model_folders` models
evaluate  eval
runs      run and replay; `watch` progress, `rollouts` the episodes of a step, `models` weights, `publish` the hub
pools     pool, task, proposal; `pool_file` a pool from a file
agent     agent; `agent_process` its processes
keys      key
environments  env
"""

from triforge.cli.main import main

__all__ = ["main"]
