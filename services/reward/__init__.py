"""The reward service: trajectories enter, votes leave; for problems that programs solve, groups enter and tests leave.

Enters: `JudgeTask` and `UnitTestTask` jobs (queue `judge`), trajectories in text form over REST. Leaves:
`TrajectoryVotes`, `GroupTests`, the announcement of complete groups, metrics.
Never: decides what a vote or a test is worth (the trainer does), plays an episode, guesses at an answer it cannot read, or
shows a program to the model that writes tests.
"""
