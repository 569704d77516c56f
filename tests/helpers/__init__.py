"""Shared by tests: models, slow oracles, questions, faults and fuzzing."""
