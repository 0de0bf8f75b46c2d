"""Experiments: the product's own parts in one process, without HTTP and Redis, so that many runs fit into an hour.

`python -m experiments adaptation` compares what changes tasks and what weighs votes, `python -m experiments envrl` what
auxiliary objectives add to the policy gradient, `python -m experiments methods` each method with its baseline. Rollouts, votes, credit,
training and rewrites are the services' own classes; only the transport is left out.
"""
