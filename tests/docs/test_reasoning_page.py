"""The code of docs/models.md on reasoning does what it says, and prints what stands there."""

import re

import pytest

from helpers import ROOT
from helpers.asking import doubts_allowed

PAGE = (ROOT / "docs" / "models.md").read_text(encoding="utf-8").partition("## Through the model's own reasoning")[2]


@pytest.mark.thorough
@pytest.mark.skipif(not (ROOT / "models/SmolLM2-135M-Instruct").is_dir(), reason="make real-models fetches the model")
@pytest.mark.usefixtures("unchecked")
def test_the_example_prints_what_stands_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    codes, names = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL), {}
    with doubts_allowed():
        for code in codes:
            exec(code, names)
    prose = re.sub(r"```python.*?```", "", PAGE.split("### What is computed")[0], flags=re.DOTALL)
    shown = [line.strip() for line in prose.splitlines() if line.startswith("    ")]
    printed = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert printed == shown and len(printed) == 14
    assert round(float(names["span"].hop_shares[0]), 2) == 0.66
