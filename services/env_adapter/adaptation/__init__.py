"""How tasks are rewritten: outcome in, proposal out, verdict after fresh measurements of parent and candidate.

worker      what one outcome leads to
controller  whether a task should change, and which way
critic      what went wrong (or too well), in two sentences a trajectory
rewriter    a menu of changes, an answer held to it, what the answer means
checks      the first candidate that all checks pass
ledger      the slot's states in SQL, one transaction a transition
"""
