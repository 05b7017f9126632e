"""What a trial has taught: effects with intervals, reward against the control, drift, alarms, data quality."""
