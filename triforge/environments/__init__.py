"""What authors of environments build on: parameters, episodes, answers, questions, workers; and how a family is found.

Empty on purpose: `worker_loop` also runs under interpreters that have none of our dependencies.
"""
