"""What must last: tables and migrations (SQLite or PostgreSQL), and the artifact store for large payloads."""
