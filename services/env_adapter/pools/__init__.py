"""Pools, tasks, slots and plans in SQL, and their REST API."""
