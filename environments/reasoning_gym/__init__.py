"""Reasoning Gym: a hundred procedural datasets of questions whose answers the dataset itself verifies."""
