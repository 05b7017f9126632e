"""Which arms a policy would like to play: one rule per file, each a pure function of the fit and the offer."""
