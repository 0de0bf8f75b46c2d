"""The reward room: trajectories enter, votes leave.

Enters: `JudgeTask` errands (queue `judge`), trajectories in text form over REST. Leaves: `TrajectoryVotes`, the
announcement of complete groups, metrics.
Never: decides what a vote is worth (the trainer does), plays an episode, or guesses at an answer it cannot read.
"""
