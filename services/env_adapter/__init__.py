"""The env_adapter service: tasks and the worlds in which they are played.

Enters: pools of tasks over REST, `GroupTask` jobs on the queue `rollout`, `TaskOutcome` jobs on the queue `adapt`.
Leaves: `TrajectoryGroup` payloads for judging, tasks and their lineage over REST, events. It asks the policy room for
text and never learns: it computes no reward from votes, updates no weights, imports no model code, and never shows a
task whose instruction says something else than its verifier rewards.
"""
