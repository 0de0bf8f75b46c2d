"""Rollout workers: play the groups of a step."""
