"""What a step's judged groups are worth: rows to train on, records, measures, and what adaptation is told.

No torch, no network, no database: groups in, values out.
"""
