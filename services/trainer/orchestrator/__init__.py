"""The orchestrator: gets groups played and judged, makes a step of them, and records it before the next begins.

No torch: learners are other processes, and are sent batches.
"""
