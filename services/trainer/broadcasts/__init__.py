"""Weights by broadcast: a learner sends published folders to the engines that a policy service names.

Enters: `BroadcastRequest` at the learner's own API. Leaves: `BroadcastOffer`, and tensors over gloo or NCCL. It exists
only while `TRIFORGE_HANDOVER=distributed`.
"""
