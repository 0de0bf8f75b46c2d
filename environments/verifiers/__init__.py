"""Environments of the package `verifiers`, played in sessions by a process of their own."""
