"""What a trial has taught: effects with their ranges, the reward against the control, drift and alarms; charts and report."""
