"""The env_adapter service: tasks and the worlds in which they are played.

Enters: pools of tasks over REST, `GroupTask` jobs on the queue `rollout`, `TaskOutcome` jobs on the queue `adapt`.
Leaves: `TrajectoryGroup` payloads for judging, tasks and their lineage over REST, events. It learns nothing, and never
shows a task whose instruction says something else than its verifier rewards.
"""
