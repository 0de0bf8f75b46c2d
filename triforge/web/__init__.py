"""HTTP for every service; the only part of the library that imports the web framework.

app           `install`: everything below, with health, readiness and metrics
problems      errors as problem documents (RFC 9457)
description   errors in the API's description
origins       the web pages and host names that are served
limits        limits on bodies
pages         Swagger UI without the internet
server        limits on headers and on slow requests
guard         keys, scopes and callers
"""
