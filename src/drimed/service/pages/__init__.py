"""The dashboard: pages for people, rendered on the server, on the same trials as /v1."""
