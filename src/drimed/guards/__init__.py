"""What a policy refuses for the control's sake: one guard per file, on one certificate for the margin."""
