"""Simulated experiments: a plan of runs, one sweep over all of them, one record of each run, tables, figures, pages."""
