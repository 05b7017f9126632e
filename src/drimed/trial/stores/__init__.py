"""Where events are kept: in memory, in SQLite, in PostgreSQL."""
