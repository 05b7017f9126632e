"""What a trial has taught: effects, the reward against the control, drift and alarms; as charts and as a report."""
