"""The paper's experiments as data, its figures re-measured, and its claims judged."""
