"""Truth: instances, drifting contexts and noise. Never sees a policy."""
