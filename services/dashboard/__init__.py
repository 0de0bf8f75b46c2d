"""The web pages of a deployment: runs as they go, pools, tasks with their lineage, rewrites with everything said about them.

It keeps nothing; a key that a browser sends goes on to the APIs, which decide what it may see and change.
"""
