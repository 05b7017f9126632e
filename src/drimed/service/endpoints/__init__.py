"""The endpoints under /v1, and what they take and answer."""
