"""One machine, one command: what `triforge up` starts, watches and stops.

broker     which Valkey or Redis is used, by the order of the design
layout     the processes of a deployment and their addresses
process    one child process: start, log, restart, stop
supervise  all of them together
"""
