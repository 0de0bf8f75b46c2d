"""What every service's API shares. Not a service: it enters none, and any room may use it.

problems      errors as problem documents (RFC 9457)
limits        a limit on bodies
text          bodies are text, every character whole
server        limits on headers and on waiting for a request, before any of our code is asked
guard         who is let in, what they may ask, and the record of it
entrance      the guard of a service, by the deployment's settings
description   what the API's description says of errors
furniture     `install`: all of it at once, with health, readiness and metrics
"""
