"""Access control: callers, keys, tenants and rates. No web framework and no service.

callers    the caller of a request, what a route requires of it, and the rows that it sees
exposure   whether an API may listen where its settings say
keys       tenants, and the keys of people and of sessions, kept as digests
gate       the checks of each request: key, scope, rate, client version
"""
