"""Who may ask for what: keys, tenants, quotas, and the record of who asked. Knows no web framework and no service.

callers    who asks, what an API wants of them, and what they may see
exposure   whether an API may be opened where its settings say
keys       tenants and their bounds; API keys, kept as a digest
gate       what an API asks of each request: whose key, which scope, how often, which version
requests   requests for changes, on record
"""
