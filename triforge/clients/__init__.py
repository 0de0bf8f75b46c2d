"""One typed HTTP client a service, over one transport seam (`transport`).

Import the client you need from its own module: `from triforge.clients.policy import PolicyClient`.
"""
