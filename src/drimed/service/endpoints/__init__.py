"""What can be asked for under /v1, one file for each kind of wish."""
