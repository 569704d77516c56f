"""The packages of docs/extending.md, built, installed into a folder, and used by a fresh interpreter."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import ROOT
from heta_lens.evaluation.run_database import read_records

EXTENDING = (ROOT / "docs" / "extending.md").read_text()
FILES = dict(re.findall(r'```\w+ title="([\w.]+)"\n(.*?)```', EXTENDING, re.DOTALL))

ATTRIBUTE = """
import heta_lens
assert heta_lens.METHODS.origin("smooth_gradient") == "heta-lens-example"
assert "smooth_gradient" in heta_lens.METHODS and list(heta_lens.METHODS)[0] == "heta"
model = heta_lens.load_demo_model()
_, cache = model.run_with_cache("Mary went to the kitchen")
attribution = heta_lens.attribute(cache, method="smooth_gradient", samples=2)
assert attribution.method == "smooth_gradient" and (attribution.scores > 0).all()
print("explained")
"""


def environment(*folders: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*folders, ROOT])), "COLUMNS": "200"}


def python(folder: Path, *arguments: str) -> str:
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment(folder), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def install(folder: Path, files: dict[str, str]) -> None:
    """Build a package of these files and unpack it into a folder, with nothing fetched."""
    source = folder / "source"
    source.mkdir()
    for name, text in files.items():
        (source / name).write_text(text)
    python(folder, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target", ".", str(source))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("extended")
    install(folder, FILES)
    return folder


@pytest.mark.thorough
@pytest.mark.slow
def test_the_method_is_used_by_attribute(installed: Path) -> None:
    assert "explained" in python(installed, "-W", "error::UserWarning", "-c", ATTRIBUTE)


@pytest.mark.thorough
def test_the_command_lists_the_method(installed: Path) -> None:
    listed = python(installed, "-c", "from heta_lens.cli import app; app(['methods'])")
    assert "smooth_gradient" in listed and "from heta-lens-example" in listed


@pytest.mark.thorough
def test_the_command_evaluates_the_method_by_the_metric(installed: Path) -> None:
    chosen = ["--methods", "smooth_gradient samples=2", "--metrics", "concentration", "--limit", "2", "--out", "run"]
    python(
        installed, "-c", "import sys; from heta_lens.cli import app; app(sys.argv[1:])", "evaluate", "recall", *chosen
    )
    assert any("concentration" in record.values for record in read_records(installed / "run"))
