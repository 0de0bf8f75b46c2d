"""What every service's HTTP API shares; the only part of the library that knows the web framework.

app           `install`: everything below at once, with health, readiness and metrics
problems      errors as problem documents (RFC 9457)
description   what the API's description says of errors
origins       which web pages may ask, under which names
limits        limits on bodies
line_end      JSON answers end with a newline
pages         Swagger UI without the internet
text          bodies are text, every character whole
server        limits on headers and on waiting for a request
guard         authentication, scopes and the record of requests for changes
"""
