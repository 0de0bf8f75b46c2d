"""Judged groups to samples, rows and records. No I/O and no torch."""
