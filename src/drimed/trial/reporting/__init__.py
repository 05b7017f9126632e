"""A trial as one page for people who know no bandits, with figures and tables beside it."""
