"""Tests of what a trial has taught."""
