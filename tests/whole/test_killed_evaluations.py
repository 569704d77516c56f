"""kill -9 at any moment loses no more than the work on one result."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="has no fork")
@pytest.mark.parametrize(
    "count", [pytest.param(2, marks=pytest.mark.thorough), pytest.param(50, marks=pytest.mark.nightly)]
)
def test_evaluations_that_are_killed(count: int) -> None:
    command = [sys.executable, "-m", "helpers.killing", str(count)]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{count} kills")
