"""A policy is a learner, a rule and a guard; the registry gives the named ones."""
