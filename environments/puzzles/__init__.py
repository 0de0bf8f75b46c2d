"""Puzzles of twelve kinds, each with difficulty levels, a verifier and a reference answer."""
