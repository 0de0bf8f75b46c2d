"""Who may ask for what: keys, tenants, quotas, and the record of who asked. Knows no web framework and no room.

callers    who asks, what an API wants of them, and what they may see
keys       API keys: made once, kept as a digest, found by their id
tenants    who shares a deployment, and how much of it they may take
gate       what an API asks of each request: whose key, which scope, how often
requests   requests for changes, on record
modes      whether a deployment asks for keys, and what it must have then
versions   clients and services of different versions
"""
