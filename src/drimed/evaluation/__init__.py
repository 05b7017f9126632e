"""Logged decisions to value estimates, effects and intervals that hold although the allocation was adaptive."""
