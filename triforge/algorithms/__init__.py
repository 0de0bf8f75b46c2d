"""Arithmetic only: rewards, advantages, credit, filters, adaptation, losses, packing, presets.

Plain numbers in, plain numbers out; nothing here opens a file, a socket or a model. `credit` is what the conductor
calls, `losses` and `packing` are what a learner calls, `adaptation` is what the adapt worker calls.
"""
