"""Scores that know nothing of the prediction: what any method has to beat."""
