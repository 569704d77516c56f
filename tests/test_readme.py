"""The README's code does what it says, on a small model in place of the one it downloads."""

import re
from pathlib import Path
from typing import Any

import pytest
from asking import weak_parts_allowed

import heta_lens
import zoo

README = (Path(__file__).parents[1] / "README.md").read_text()


def python_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.skipif(not zoo.HAS_HOOKED, reason="the README's example is for TransformerLens 3")
def test_the_example_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import transformer_lens

    small = zoo.hooked("gpt2")
    monkeypatch.setattr(
        transformer_lens.HookedTransformer, "from_pretrained_no_processing", classmethod(lambda *_: small)
    )
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    with weak_parts_allowed():
        for block in python_blocks():
            exec(block, names)
    saved = heta_lens.Attribution.load(tmp_path / "paris.safetensors")
    assert saved.target_text == " Paris"
    assert "".join(saved.tokens).endswith("The capital of France is")


@pytest.mark.parametrize("link", re.findall(r"\]\((?!http)([^)]+)\)", README))
def test_every_link_leads_somewhere(link: str) -> None:
    assert (Path(__file__).parents[1] / link).exists()


@pytest.mark.parametrize("name", re.findall(r"`(\w+)=", README))
def test_every_option_it_names_exists(name: str) -> None:
    options = set(heta_lens.Heta.__dataclass_fields__) | set(heta_lens.attribute.__annotations__)
    assert name in options
