"""The trainer: judged groups enter, weights leave.

Enters: `JudgedGroup` (stream `judged`), runs over REST. Leaves: `GroupTask`, `TaskOutcome`, `TrainBatch`, weight folders
and `WeightsReady`, events. The orchestrator (no torch) decides what is played and trained; a learner (torch) holds one role.
Never: plays an episode, asks a model for text, or touches a task.

Two programs live here (docs/architecture.md, "Inside the trainer"). The orchestrator, without torch: `train_loop` and what
it names. A learner, with torch: `learner`, `objectives`, `models`, `broadcasts`. Both use `weights`.
"""
