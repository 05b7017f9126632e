"""The field model: a learner for outcomes that differ between groups, seasons, blocks and users."""
