"""Shared by tests: models, slow oracles, questions, faults and fuzzing."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"
