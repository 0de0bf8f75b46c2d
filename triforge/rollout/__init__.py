"""Playing episodes: what an environment, a model and a judge promise, and what is made of them.

protocols      environments, sampling, judging; `adapting` what a family may offer beside
episode        one episode, and the K episodes of a group; `tape` its tokens, `isolation` a thread of its own
window         how far playing may run ahead of learning
judging        the judge's job that follows from a group
choices        closed choices as a regular expression
seeds          that follow from other seeds
"""
