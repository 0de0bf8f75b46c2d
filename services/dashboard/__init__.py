"""The web pages of a deployment: runs with their curves and rollouts, pools, tasks with their lineage, comparisons.

The service stores nothing. It sends the key of a browser on to the APIs, which decide what the browser may read and change.
"""
