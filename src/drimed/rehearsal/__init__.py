"""Rehearsals: what a trial will do, before anybody is in it."""
