"""The command line. Every command is shown in the README; `triforge COMMAND --help` says its options.

main      up, status, logs, doctor, env
runs      run; `rollouts` what was played at a step, `models` which weights
pools     pool, task, proposal; `pool_file` a pool from a file
train     train; `training` the same for Python, `model_folders` the models that it takes
evaluate  eval; `watch` the live view of a run
keys      key, tenant
backup    backup, restore
terminal  what all commands share: the console, the addresses of the APIs
"""

from triforge.cli.main import main

__all__ = ["main"]
