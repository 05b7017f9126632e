"""Policies in worlds: one loop, its metrics, and sweeps over many seeds."""
