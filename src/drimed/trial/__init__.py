"""Live trials: ask, tell, and never lose a decision."""
