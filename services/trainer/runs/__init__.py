"""Runs in the database: REST API, rollback, exports, trackers."""
