"""The command line. `triforge COMMAND --help` documents each command.

main          the entry point with the table of commands; `terminal` printing; `deployment` addresses and clients
up            up, status, logs, doctor
training      train, and the same for Python; `checks` and `kept` what is refused before a start; `model_folders`
evaluate      eval
runs          run and replay; `watch` progress, `rollouts` the episodes of a step, `models` weights
pools         pool, task, proposal
agent         agent; `agent_process` its processes
keys          key
environments  env
"""

from triforge.cli.main import main

__all__ = ["main"]
