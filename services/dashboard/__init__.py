"""The web pages of a deployment: runs as they go, pools, tasks with their lineage, rewrites with everything said about them.

Enters: answers of the APIs of trainer and env_adapter, the events of a run. Leaves: pages of HTML. It changes nothing,
keeps nothing and is read by no other service; a key that a browser sends goes on to the APIs, which decide what it may see.
"""
