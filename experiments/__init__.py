"""Experiments: the product's own loop in one process, without HTTP and Redis, so that many runs fit into an hour.

`python -m experiments table1 | outgrown | outgrown_broad | votes` plays every arm on every seed and writes the report.
"""
