"""Access control: callers, keys and tenants. No web framework and no service.

callers    the caller of a request, what a route requires of it, and the rows that it sees
exposure   whether an API may listen where its settings say
keys       the keys of people and of sessions, kept as digests
gate       the checks of each request: key, scope, client version
"""
