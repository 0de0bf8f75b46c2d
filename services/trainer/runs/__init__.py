"""Runs, from the first request to the last weight version: what is on record of them, published, told, taken back.

No torch: this is the orchestrator's side of the service.
"""
