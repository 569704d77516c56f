"""Whether two attributions are the same."""

from typing import Any

import torch

from helpers.asking import relative
from heta_lens import Attribution


def alike(found: Any, expected: Attribution, tolerance: float = 1e-5) -> None:
    assert (found.target, found.target_text, found.tokens) == (expected.target, expected.target_text, expected.tokens)
    assert found.positions.tolist() == list(range(len(expected)))
    assert torch.equal(found.ids, expected.ids)
    assert found.parts.keys() == expected.parts.keys()
    assert relative(found.scores, expected.scores) < tolerance
    for name, part in expected.parts.items():
        assert relative(found.parts[name], part) < tolerance, name
