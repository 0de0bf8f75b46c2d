"""What every room's door shares. Not a room: it enters none, and any room may use it.

problems      errors as problem documents (RFC 9457)
limits        a limit on bodies
description   what the API's description says of errors
furniture     `install`: all of it at once, with health, readiness and metrics
"""
