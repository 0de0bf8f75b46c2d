"""The command line. Every command is shown in the README; `triforge COMMAND --help` says its options.

main      the entry point; `commands` the table of all commands
up        up; `checks` what is refused before anything starts
train     train; `training` the same for Python, `model_folders` the models that it takes, `kept` what a stopped deployment has
evaluate  eval; `watch` the live view of a run
runs      run; `rollouts` what was played at a step, `models` which weights
pools     pool, task, proposal; `pool_file` a pool from a file
status    status, logs
doctor, environments (env), agent, keys (key, tenant), backup (backup, restore)
terminal  what all commands print with; `options` what several take, `deployment` which one they ask
"""

from triforge.cli.main import main

__all__ = ["main"]
