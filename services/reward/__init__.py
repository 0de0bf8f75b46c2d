"""The reward service: trajectories enter, votes leave; a scorer may judge a group as a whole.

It never decides how votes are rewarded (the trainer does), plays no episode, and guesses at no answer that it cannot read.
"""
