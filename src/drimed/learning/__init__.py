"""What evidence a policy keeps: offers, outcomes, and the regression that is fitted to them."""
