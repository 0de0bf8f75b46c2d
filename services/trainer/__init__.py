"""The trainer: judged groups enter, weights leave.

The orchestrator, without torch, decides what is played and trained: `train_loop` and what it names. A learner, with torch,
holds one model: `learner` and what it names. Neither plays an episode, asks a model for text, or touches a task.
"""
