"""Prompts of one's own, answered once and graded by a Python function of one's own."""
