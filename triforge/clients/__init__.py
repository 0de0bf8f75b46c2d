"""Typed HTTP clients, one for each service, over one `transport`.

Import a client from its own module: `from triforge.clients.policy import PolicyClient`.
"""
