"""Rehearsals: a trial file, simulated many times by the live functions."""
