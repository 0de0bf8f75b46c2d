"""One machine, one command: what `triforge up` starts, watches and stops.

layout     the processes of a deployment and their addresses
process    one child process: start, log, restart, stop
supervise  all of them together
"""
