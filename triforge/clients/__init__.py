"""One typed HTTP client a room, over one transport seam (`transport`).

Import the client you need from its own module: `from triforge.clients.policy import PolicyClient`.
"""
