"""Mutated files put to every reader: `python -m fuzz --cases 10000 --seed 0 --only NAME` (with tests/ on the path)."""
