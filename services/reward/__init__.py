"""The reward service: trajectories enter, votes leave; for problems that programs solve, groups enter and tests leave.

It never decides what a vote or a test is worth (the trainer does), plays no episode, guesses at no answer that it cannot
read, and shows no program to the model that writes tests.
"""
