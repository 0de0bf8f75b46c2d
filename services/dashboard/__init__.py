"""The room people look into: runs as they go, pools, tasks with their lineage, rewrites with everything said about them.

Enters: answers of the doors of trainer and env_adapter, the events of a run. Leaves: pages of HTML. It changes nothing,
keeps nothing and is read by no other room; a key that a browser sends goes on to the doors, which decide what it may see.
"""
