"""The base of environment packages: parameters, episodes, answers, questions, workers, and the registry of families.

This module imports nothing, because `worker_loop` also runs under interpreters without our dependencies.
"""
