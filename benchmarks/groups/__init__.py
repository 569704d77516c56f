"""How good grouped probes are: their error, their intervals, and what was tried to make them better."""
