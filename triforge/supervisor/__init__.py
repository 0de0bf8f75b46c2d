"""The processes of a deployment on one machine: `triforge up` starts, watches and stops them.

layout     the processes and their addresses; `ports` their ports
process    one child process: start, log, restart, stop
supervise  all of them together
"""
