"""Mutated files put to every reader: `PYTHONPATH=tests python -m helpers.fuzz --cases 10000 --seed 0 --only NAME`."""
