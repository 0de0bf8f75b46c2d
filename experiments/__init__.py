"""Experiments: the product's own parts in one process, without HTTP and Redis, so that many runs fit into an hour.

`python -m experiments adaptation` compares what changes tasks and what weighs votes, `python -m experiments envrl` what
auxiliary objectives do beside the policy gradient, `python -m experiments methods` each method beside its baseline. What it
plays, judges, credits, trains and rewrites with are the services' own classes; only what carries things between them is left out.
"""
