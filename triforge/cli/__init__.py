"""The command line: `triforge up | status | doctor | pool | run`.

main        the commands
pool_file   a pool from a file
watch       the live view of a run
"""

from triforge.cli.main import main

__all__ = ["main"]
