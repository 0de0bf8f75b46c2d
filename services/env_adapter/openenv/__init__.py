"""Any family as an OpenEnv server (`triforge env serve NAME`): observations as text, its rewards or score, else reward 1 for success.

It has nothing to do with pools and runs; it plays the tasks that its family generates.
"""
