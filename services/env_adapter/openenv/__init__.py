"""Any family as an OpenEnv server: `triforge env serve NAME`.

What enters: OpenEnv's messages over HTTP or a WebSocket. What leaves: observations as text, reward 1 for success. It has
nothing to do with pools and runs; it plays the tasks that its family generates.

session     one client's episode, and which task it plays
app         the APIs
"""
